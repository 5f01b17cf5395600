"""The fixed reduction, fitted on training rows; balancing: SMOTE as specified, weights only where nothing was resampled, one
clear message for scarce classes.
"""

import re

import pytest
import torch

from predictors.head import Reduction
from predictors.network import squared_distance
from predictors.training.head_training import balance, fit_reduction


def features(rows=200):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(rows, 7, generator=generator) * torch.tensor([1.0, 5, 2, 1, 3, 9, 1]) + 4
    values[:, 1] += 3 * values[:, 0]
    values[:, 3] = 2.5
    return values


def test_standardisation_and_constant_columns():
    reduction, rows = Reduction(5, 2, None), features()
    fit_reduction(reduction, rows, seed=0)
    expected = (rows - rows.mean(dim=0)) / rows.std(dim=0, correction=0)
    expected[:, 3] = 0
    assert reduction.scale[3] == 1
    torch.testing.assert_close(reduction(rows), expected, atol=1e-4, rtol=1e-4)


def test_principal_components_have_unit_variance_and_scalars_are_kept():
    reduction, rows = Reduction(5, 2, 3), features()
    fit_reduction(reduction, rows, seed=0)
    reduced = reduction(rows)
    torch.testing.assert_close(torch.cov(reduced.T, correction=0)[:3, :3], torch.eye(3), atol=1e-4, rtol=0)
    standard = (rows - reduction.mean) / reduction.scale
    torch.testing.assert_close(reduced[:, 3:], standard[:, 5:])
    assert abs(float(squared_distance(reduced).mean()) - 1) < 1e-3


def test_more_components_than_rows_are_refused():
    with pytest.raises(ValueError, match="3 principal components need at least as many training rows"):
        fit_reduction(Reduction(5, 2, 3), features(rows=2), seed=0)


def rows(none=30, some=60, every=12, seed=0):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor([none, some, every]))
    values = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(seed))
    return values * torch.tensor([1.0, 100, 0.1, 1]) + labels.unsqueeze(1), labels


def on_a_segment(point, members):
    """Whether ``point`` lies between two of ``members``."""
    start, end = members.unsqueeze(1), members.unsqueeze(0)
    along = (end - start).square().sum(-1).clamp_min(1e-12)
    share = (((point - start) * (end - start)).sum(-1) / along).clamp(0, 1)
    return float((start + share.unsqueeze(-1) * (end - start) - point).norm(dim=-1).min()) < 1e-4


def test_smote_keeps_the_real_rows_and_equalises_the_classes():
    features, labels = rows()
    made = balance("smote", features, labels, seed=0)
    assert torch.equal(made.features[: len(labels)], features) and torch.equal(made.labels[: len(labels)], labels)
    assert made.labels.bincount().tolist() == [60, 60, 60]
    assert made.class_weights is None  # no weight on the counts before SMOTE
    assert made.shares == pytest.approx((1 / 3,) * 3)


def test_interpolating_reduced_rows_is_the_specification_in_raw_space():
    raw, labels = rows()
    reduction = Reduction(4, 0, None)
    fit_reduction(reduction, raw, seed=0)
    made = balance("smote", reduction(raw), labels, seed=0)
    back = made.features * reduction.scale + reduction.mean  # the specification's inverse transform
    for label in (0, 2):
        synthetic = (made.labels == label).nonzero().squeeze(1)
        synthetic = synthetic[synthetic >= len(labels)]
        members = raw[labels == label]
        assert all(on_a_segment(made.features[i], reduction(members)) for i in synthetic.tolist())
        assert all(on_a_segment(back[i] / reduction.scale, members / reduction.scale) for i in synthetic.tolist())
        wrong = back[synthetic[0]] / reduction.scale + 0.5
        assert not on_a_segment(wrong, members / reduction.scale)


def test_neighbours_are_chosen_in_standardised_space():
    raw, labels = rows()
    reduction = Reduction(4, 0, None)
    fit_reduction(reduction, raw, seed=0)
    standard = balance("smote", reduction(raw), labels, seed=0).features * reduction.scale + reduction.mean
    assert not torch.allclose(standard, balance("smote", raw, labels, seed=0).features, atol=1e-3)


def test_few_samples_give_one_message_and_fewer_neighbours():
    features, labels = rows(every=4)
    with pytest.warns(UserWarning) as caught:
        made = balance("smote", features, labels, seed=0)
    assert len(caught) == 1
    assert re.findall(r"(\d) \w+ of class 'all'", str(caught[0].message)) == ["4", "3"]
    assert made.labels.bincount().tolist() == [60, 60, 60]


def test_one_sample_falls_back_to_class_weights():
    features, labels = rows(every=1)
    with pytest.warns(UserWarning, match="1 rows of class 'all'.*class weights instead") as caught:
        made = balance("smote", features, labels, seed=0)
    assert len(caught) == 1 and made.method == "class_weights" and len(made.labels) == len(labels)
    assert made.class_weights.tolist() == pytest.approx([91 / 90, 91 / 180, 91 / 3])


@pytest.mark.parametrize("method", ["smote", "class_weights", "none"])
def test_a_class_without_rows_is_refused(method):
    features, labels = rows(every=0)
    with pytest.raises(
        ValueError, match=r"class 'all' has no training row.*Collect more prompts or change labels.chains.gamma"
    ):
        balance(method, features, labels, seed=0)


def test_none_keeps_the_natural_shares():
    features, labels = rows()
    made = balance("none", features, labels, seed=0)
    assert made.shares == pytest.approx((30 / 102, 60 / 102, 12 / 102)) and made.features is features


@pytest.mark.parametrize("method", ["smote", "class_weights", "none"])
def test_any_number_of_classes_is_balanced(method):
    labels = torch.repeat_interleave(torch.arange(5), torch.tensor([40, 10, 20, 8, 40]))
    features = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0)) + labels.unsqueeze(1)
    made = balance(method, features, labels, seed=0, classes=("0", "1", "2", "3", "4"))
    natural = (labels.bincount() / len(labels)).tolist()
    assert made.shares == pytest.approx(natural if method == "none" else [0.2] * 5)
    if method == "smote":
        assert made.labels.bincount().tolist() == [40] * 5
    if method == "class_weights":
        assert made.class_weights.tolist() == pytest.approx([118 / (5 * n) for n in (40, 10, 20, 8, 40)])
