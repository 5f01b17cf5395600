"""Metrics by hand and against scikit-learn; temperature scaling finds the temperature that was planted."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score

from predictors.head import Calibration
from predictors.training.calibration import (
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    MacroAuc,
    auc,
    evaluate,
    fit_calibration,
    fit_temperature,
    mean_absolute_error,
)
from predictors.training.intervals import DocumentBootstrap, percentiles

PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
LABELS = np.array([0, 1, 2, 2])


def random_rows(rows=300, ties=10):
    random = np.random.default_rng(0)
    probabilities = random.dirichlet([1, 1, 1], rows).round(1 if ties else 9) + 1e-3
    return probabilities / probabilities.sum(axis=1, keepdims=True), random.integers(0, 3, rows)


def test_metrics_by_hand():
    """Of fifteen bins one holds .5 (right) and .5 (right), one .6 (wrong), one .8 (right). Confusion has true classes as rows."""
    record = evaluate(PROBABILITIES, LABELS)
    brier = (0.04 + 0.01 + 0.01) + (0.04 + 0.25 + 0.09) + (0.01 + 0.36 + 0.49) + (0.0625 + 0.0625 + 0.25)
    assert record["brier"] == pytest.approx(brier / 4)
    assert record["ece"] == pytest.approx((2 * 0.5 + 0.6 + 0.2) / 4)
    assert record["nll"] == pytest.approx(-np.log([0.8, 0.5, 0.3, 0.5]).mean())
    assert record["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert mean_absolute_error(PROBABILITIES, np.array([0, 1, 2, 0])) == pytest.approx(3 / 4)
    sure = evaluate(np.eye(3), np.arange(3))
    assert sure["ece"] == 0 and len(sure["reliability"]) == 1, "perfect confidence falls in the last bin"


def test_any_number_of_classes_is_measured():
    random = np.random.default_rng(0)
    probabilities, labels = random.dirichlet([1] * 5, 200), random.integers(0, 5, 200)
    record = evaluate(probabilities, labels, ("0", "1", "2", "3", "4"))
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert record["macro_auc"] == pytest.approx(expected)
    assert list(record["auc"]) == ["0", "1", "2", "3", "4"] and np.shape(record["confusion"]) == (5, 5)
    assert record["brier"] == pytest.approx(((probabilities - np.eye(5)[labels]) ** 2).sum(axis=1).mean())


def test_against_scikit_learn_with_ties():
    probabilities, labels = random_rows()
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    record, predicted = evaluate(probabilities, labels), probabilities.argmax(axis=1)
    assert record["macro_auc"] == MacroAuc(probabilities, labels)(np.ones(len(labels))) == pytest.approx(expected)
    assert record["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))


def test_weights_count_rows():
    probabilities, labels = random_rows(60)
    weights = np.random.default_rng(1).integers(0, 4, 60)
    repeated = np.repeat(np.arange(60), weights)
    expected = auc(probabilities[repeated, 0], labels[repeated] == 0, np.ones(len(repeated)))
    assert auc(probabilities[:, 0], labels == 0, weights.astype(float)) == pytest.approx(expected)


def test_an_absent_class_is_left_out_of_the_macro_auc():
    probabilities, labels = random_rows(60)
    labels = np.minimum(labels, 1)
    record = evaluate(probabilities, labels)
    assert record["auc"]["all"] is None
    assert record["macro_auc"] == pytest.approx(np.mean([record["auc"]["none"], record["auc"]["some"]]))


def test_the_bootstrap_draws_whole_documents():
    documents = np.array(["a", "a", "b", "c"])
    bootstrap = DocumentBootstrap(documents, replicates=200, seed=0)
    assert (bootstrap.counts.sum(axis=1) == 3).all()
    ratios = bootstrap.ratio(np.array([1.0, 1, 2, 3]), np.ones(4))
    weighted = bootstrap.each(lambda weights: float((weights * [1, 1, 2, 3]).sum() / weights.sum()))
    assert ratios == pytest.approx(weighted)
    record = percentiles(1.75, ratios)
    assert record["low"] < 1.75 < record["high"]
    assert record == percentiles(
        1.75, DocumentBootstrap(documents, 200, seed=0).ratio(np.array([1.0, 1, 2, 3]), np.ones(4))
    )


def planted(temperature, bias, rows=40_000):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(rows, 3, generator=generator)
    law = Calibration(temperature, bias).probabilities(logits)
    return logits, torch.multinomial(law, 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("bias", [(0.0, 0.0, 0.0), (0.5, 0.3, -1.2)])
def test_a_planted_temperature_is_recovered(temperature, bias):
    logits, labels = planted(temperature, bias)
    assert fit_temperature(logits, labels, torch.tensor(bias)) == pytest.approx(temperature, rel=0.03)


def test_leaving_the_prior_out_gives_another_temperature():
    """The failing twin: a correction that is ignored shows."""
    logits, labels = planted(1.0, (0.5, 0.3, -1.2))
    assert abs(fit_temperature(logits, labels, torch.zeros(3)) - 1.0) > 0.05


def test_it_is_the_minimum():
    logits, labels = planted(2.0, (0.0, 0.0, 0.0), rows=500)
    best = fit_temperature(logits, labels, torch.zeros(3))

    def loss(t):
        return float(torch.nn.functional.cross_entropy(logits.double() / t, labels))

    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02))


def test_separable_rows_stay_within_bounds():
    labels = torch.arange(3).repeat(10)
    right = torch.eye(3)[labels]
    assert MIN_TEMPERATURE <= fit_temperature(right, labels, torch.zeros(3)) < 0.05
    assert fit_temperature(-right, labels, torch.zeros(3)) == pytest.approx(MAX_TEMPERATURE, rel=1e-3)


def test_prior_correction_can_be_left_out():
    logits, labels = planted(1.0, (0.0, 0.0, 0.0), rows=500)
    natural, training = (0.3, 0.6, 0.1), (1 / 3,) * 3
    corrected = fit_calibration(logits, labels, natural, training)
    plain = fit_calibration(logits, labels, natural, natural)
    assert corrected.bias == pytest.approx([torch.tensor(3 * share).log().item() for share in natural], abs=1e-6)
    assert plain.bias == (0.0, 0.0, 0.0)
