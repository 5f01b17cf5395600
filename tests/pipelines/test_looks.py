"""Levels of looks against published boundaries, a multivariate normal, and a plan that spends nothing; power by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from pipelines.evidence.estimate import Estimate
from pipelines.evidence.looks import levels, spent
from pipelines.evidence.power import detectable, documents_needed
from pipelines.promotion.bounds import Bounds

PLAN = (0.5, 0.75, 1.0)


def test_published_boundaries_of_five_equal_looks():
    """Pocock-type spending of 2.5 % (ldbounds, a port of Reboussin, DeMets, Kim and Lan's program)."""
    found = norm.isf(levels(0.025, (0.2, 0.4, 0.6, 0.8, 1.0)))
    np.testing.assert_allclose(found, [2.4380, 2.4268, 2.4101, 2.3966, 2.3859], atol=2e-4)


def passing(shares, edges, drift=0.0):
    """Probability that any look passes, of statistics whose mean is ``drift`` times the root of a share."""
    shares = np.array(shares)
    correlation = np.sqrt(np.minimum.outer(shares, shares) / np.maximum.outer(shares, shares))
    heights = np.array(edges) - drift * np.sqrt(shares)
    if len(shares) == 1:
        return norm.sf(heights[0])
    return 1 - multivariate_normal(np.zeros(len(shares)), correlation).cdf(heights)


def test_all_looks_together_err_as_often_as_planned():
    edges = norm.isf(levels(0.025, PLAN))
    for count in (1, 2, 3):
        assert passing(PLAN[:count], edges[:count]) == pytest.approx(spent(0.025, PLAN[count - 1]), abs=2e-5)
    assert passing(PLAN, norm.isf([0.025] * 3)) > 0.04, "the same level at every look errs far more often"
    assert passing(PLAN, edges, drift=3.2) > 0.8


def test_one_look_has_all_of_it():
    assert levels(0.025, (1.0,)) == pytest.approx((0.025,)) and levels(0.025, PLAN)[0] == pytest.approx(
        spent(0.025, 0.5)
    )


@pytest.mark.parametrize("shares", [(), (0.5, 0.5), (0.8, 0.4), (0.0, 1.0), (0.5, 1.2)])
def test_shares_of_information_make_sense(shares):
    with pytest.raises(ValueError, match="shares of information"):
        levels(0.025, shares)


def test_the_smallest_gain_passes_as_often_as_stated():
    one = Estimate(0.0, 0.02, 1e6, 40, 60)
    gain = detectable(one, 0.0155, 0.0, 0.8)
    passing = norm.sf(norm.isf(0.0155) - math.log1p(gain) / one.error)
    assert passing == pytest.approx(0.8, abs=1e-4)
    assert detectable(one, 0.0155, 0.03, 0.8) > gain + 0.03
    assert detectable(Estimate(0.0, 0.02, 5.0, 6, 60), 0.0155, 0.0, 0.8) > gain, "fewer degrees of freedom show less"


def test_documents_needed():
    one = Estimate(0.04, 0.02, 1e6, 40, 60)
    wanted = (norm.isf(0.0155) + norm.isf(0.2)) * 0.02 / 0.04
    assert documents_needed(one, 0.0155, 0.0, 0.8) == math.ceil(40 * wanted**2)
    assert documents_needed(Estimate(-0.01, 0.02, 9.0, 40, 60), 0.0155, 0.0, 0.8) is None


def test_documented_levels_are_those_of_the_default_plan():
    """docs/release.md: share of the plan, error spent so far and level, in percent."""
    text = (Path(__file__).parents[2] / "docs" / "release.md").read_text()
    rows = [
        [cell.strip(" %") for cell in line.split("|")[3:6]]
        for line in text.splitlines()
        if line[:4] in ("| 1 ", "| 2 ", "| 3 ")
    ]
    bounds = Bounds()
    made = [
        [100 * share, 100 * spent(bounds.alpha, share), 100 * bounds.level(look)]
        for look, share in enumerate(bounds.looks, 1)
    ]
    np.testing.assert_allclose(np.array(rows, dtype=float), made, atol=0.006)
