"""Gains by slice: between a slice's own estimate and the mean of all, and covering what is true."""

import math

import numpy as np
import pytest

from pipelines.gate.evidence.gain import Estimate, pooled, slice_gains
from pipelines.gate.evidence.ledger import TimedBlocks
from tests.pipelines.hand_made_decodes import decodes

NORMAL = 1e9  # degrees of freedom


def estimates(values, errors):
    return {
        name: Estimate(value, error, NORMAL, 9, 9) for name, value, error in zip("abc", values, errors, strict=False)
    }


def logs(found):
    return [(math.log1p(one.value), math.log1p(one.low), math.log1p(one.high)) for one in found.values()]


def test_slices_that_may_differ_widely_borrow_nothing():
    own = estimates((0.1, 0.0, -0.1), (0.01, 0.02, 0.03))
    for (value, low, high), one in zip(logs(pooled(own, spread=50.0)), own.values(), strict=True):
        assert value == pytest.approx(one.value, abs=2e-3)
        assert low == pytest.approx(one.value - 1.645 * one.error, rel=0.1, abs=2e-3)
        assert high == pytest.approx(one.value + 1.645 * one.error, rel=0.1, abs=2e-3)


def test_slices_that_are_alike_have_one_gain():
    values, errors = (0.1, 0.0, -0.1), np.array((0.01, 0.02, 0.03))
    weights = errors**-2 / (errors**-2).sum()
    mean, error = weights @ np.array(values), 1 / np.sqrt((errors**-2).sum())
    for value, low, _ in logs(pooled(estimates(values, errors), spread=1e-5)):
        assert value == pytest.approx(mean, abs=1e-5) and low == pytest.approx(mean - 1.645 * error, abs=1e-4)


def test_bounds_cover_slices_that_differ():
    """About as often as stated; the mean of all, taken for every slice's gain, covers far less."""
    draw, errors = np.random.default_rng(0), (0.015, 0.03, 0.05)
    hits, naive = [], []
    for _ in range(150):
        true = 0.02 + 0.06 * draw.standard_normal(3)
        own = estimates(true + np.array(errors) * draw.standard_normal(3), errors)
        hits += [low <= value for (_, low, _), value in zip(logs(pooled(own, 0.05)), true, strict=True)]
        naive += [low <= value for (_, low, _), value in zip(logs(pooled(own, 1e-5)), true, strict=True)]
    assert 0.91 <= np.mean(hits) <= 0.99 and np.mean(naive) < 0.8


def test_a_slice_with_few_documents_is_named_and_not_judged():
    blocks = TimedBlocks.of(decodes(lambda arm, *where: 12.0 if arm == "challenger" else 10.0))
    found = slice_gains(blocks, "challenger", "chain-4", least=3, spread=0.05)
    assert found["code"].judged and found["code"].value == pytest.approx(0.2, abs=1e-6) and found["code"].documents == 3
    assert not found["prose"].judged and found["prose"].low is None and found["prose"].documents == 2
    assert not slice_gains(blocks, "challenger", "chain-4", least=4, spread=0.05)["code"].judged
