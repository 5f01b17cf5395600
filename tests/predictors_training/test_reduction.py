"""The fixed reduction: fitted on training rows, exact formulas."""

import pytest
import torch

from predictors.head import Reduction
from predictors.network import squared_distance
from predictors.training.head_training import fit_reduction


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
