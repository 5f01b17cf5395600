"""Metrics against values worked out by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from predictors.training.calibration import MacroAuc, auc, evaluate, mean_absolute_error
from predictors.training.intervals import DocumentBootstrap, percentiles

PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
LABELS = np.array([0, 1, 2, 2])


def random_rows(rows=300, ties=10):
    random = np.random.default_rng(0)
    probabilities = random.dirichlet([1, 1, 1], rows).round(1 if ties else 9) + 1e-3
    return probabilities / probabilities.sum(axis=1, keepdims=True), random.integers(0, 3, rows)


def test_brier_by_hand():
    expected = (0.04 + 0.01 + 0.01) + (0.04 + 0.25 + 0.09) + (0.01 + 0.36 + 0.49) + (0.0625 + 0.0625 + 0.25)
    assert evaluate(PROBABILITIES, LABELS)["brier"] == pytest.approx(expected / 4)


def test_calibration_error_by_hand():
    # of fifteen bins one holds .5 (right) and .5 (right), one .6 (wrong), one .8 (right)
    assert evaluate(PROBABILITIES, LABELS)["ece"] == pytest.approx((2 * 0.5 + 0.6 + 0.2) / 4)


def test_perfect_confidence_falls_in_the_last_bin():
    made = evaluate(np.eye(3), np.arange(3))
    assert made["ece"] == 0 and len(made["reliability"]) == 1


def test_likelihood_by_hand():
    assert evaluate(PROBABILITIES, LABELS)["nll"] == pytest.approx(-np.log([0.8, 0.5, 0.3, 0.5]).mean())


def test_the_error_of_lengths_by_hand():
    """Said 0, 1, 1, 2 where it was 0, 1, 2, 0: off by 0, 0, 1, 2."""
    assert mean_absolute_error(PROBABILITIES, np.array([0, 1, 2, 0])) == pytest.approx(3 / 4)


def test_any_number_of_classes_is_measured():
    random = np.random.default_rng(0)
    probabilities, labels = random.dirichlet([1] * 5, 200), random.integers(0, 5, 200)
    record = evaluate(probabilities, labels, ("0", "1", "2", "3", "4"))
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert record["macro_auc"] == pytest.approx(expected)
    assert list(record["auc"]) == ["0", "1", "2", "3", "4"] and np.shape(record["confusion"]) == (5, 5)
    assert record["brier"] == pytest.approx(((probabilities - np.eye(5)[labels]) ** 2).sum(axis=1).mean())


def test_confusion_has_true_classes_as_rows():
    assert evaluate(PROBABILITIES, LABELS)["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


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
