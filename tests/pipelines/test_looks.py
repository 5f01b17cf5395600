"""Levels of looks against every dependence of looks on each other, and a plan that spends nothing; power by hand."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from pipelines.gate.evidence.gain import Estimate
from pipelines.gate.plan import levels, next_look, require_new, spent

PLAN = (0.5, 0.75, 1.0)
ACCUMULATING = (
    0.01549,
    0.01036,
    0.00999,
)  # Lan and DeMets' levels, of looks whose later ones keep all times of earlier ones


def correlations(shares, apart=False):
    """Of looks that accumulate documents; ``apart``: the first one shares nothing with later ones."""
    shares = np.array(shares)
    found = np.sqrt(np.minimum.outer(shares, shares) / np.maximum.outer(shares, shares))
    found[0, 1:] *= not apart
    found[1:, 0] *= not apart
    return found


def passing(some_levels, correlation, drift=0.0):
    """Probability that any look passes, of statistics whose mean is ``drift`` times the root of a share."""
    heights = norm.isf(some_levels) - drift * np.sqrt(PLAN)
    return 1 - multivariate_normal(np.zeros(len(PLAN)), correlation).cdf(heights)


def test_all_looks_together_err_at_most_as_planned_however_they_depend():
    """Where a stage took the first look later ones share its prompts, not its times. The wrong twin's levels need those, too."""
    planned, accumulating, apart = levels(0.025, PLAN), correlations(PLAN), correlations(PLAN, apart=True)
    assert sum(planned) == pytest.approx(0.025) and all(level > 0 for level in planned)
    for dependence in (np.eye(3), accumulating, apart):
        assert passing(planned, dependence) < 0.025
    assert passing(ACCUMULATING, accumulating) == pytest.approx(0.025, abs=1e-4) and passing(ACCUMULATING, apart) > 0.03


@pytest.mark.parametrize(("some_levels", "error"), [(levels(0.025, PLAN), 0.025), (ACCUMULATING, 0.03584)])
def test_no_dependence_errs_more_often_than_the_sum(some_levels, error):
    """The worst of all: one uniform number is every look's p-value, turned so that at most one look passes at a time."""
    uniform = (np.arange(100_000) + 0.5) / 100_000
    turned = [(uniform - start) % 1 for start in np.cumsum((0.0, *some_levels[:-1]))]
    passed = np.any([value < level for value, level in zip(turned, some_levels, strict=True)], axis=0)
    assert passed.mean() == pytest.approx(error, abs=1e-4)


def test_levels_leave_enough_power():
    """A gain of 3.3 standard errors of all documents passes in 80 % of cases; one look at all of them would pass 2.8 as often."""
    assert passing(levels(0.025, PLAN), correlations(PLAN), drift=3.3) > 0.8


def test_one_look_has_all_of_it():
    assert levels(0.025, (1.0,)) == pytest.approx((0.025,)) and levels(0.025, PLAN)[0] == pytest.approx(
        spent(0.025, 0.5)
    )


def test_the_smallest_gain_passes_as_often_as_stated():
    one = Estimate(0.0, 0.02, 1e6, 40, 60)
    gain = one.detectable(0.0155, 0.0, 0.8)
    passing = norm.sf(norm.isf(0.0155) - math.log1p(gain) / one.error)
    assert passing == pytest.approx(0.8, abs=1e-4)
    assert one.detectable(0.0155, 0.03, 0.8) > gain + 0.03
    assert Estimate(0.0, 0.02, 5.0, 6, 60).detectable(0.0155, 0.0, 0.8) > gain, "fewer degrees of freedom show less"


def test_documents_needed():
    one = Estimate(0.04, 0.02, 1e6, 40, 60)
    wanted = (norm.isf(0.0155) + norm.isf(0.2)) * 0.02 / 0.04
    assert one.documents_needed(0.0155, 0.0, 0.8) == math.ceil(40 * wanted**2)
    for value in (-0.01, 1e-300):
        assert Estimate(value, 0.02, 9.0, 40, 60).documents_needed(0.0155, 0.0, 0.8) is None


UNTRIED = {
    "version": 2,
    "passed": False,
    "verdict": "refused",
    "look": 1,
    "smallest_gain": None,
    "evidence_sha256": "x",
}
OPEN_LOOK = UNTRIED | {"verdict": "inconclusive", "smallest_gain": 0.05}


def test_only_what_was_measured_counts_as_a_look():
    assert next_look([], "p-hrad", "1", 3) == next_look([UNTRIED, UNTRIED], "p-hrad", "1", 3) == 1
    assert next_look([UNTRIED, OPEN_LOOK], "p-hrad", "1", 3) == 2
    require_new({"look": 1, "evidence_sha256": "y"}, [UNTRIED])
    require_new({"look": 1, "evidence_sha256": "x"}, [OPEN_LOOK])
    require_new({"look": 2, "evidence_sha256": "y"}, [OPEN_LOOK])
    with pytest.raises(ValueError, match="look 1 was taken already"):
        require_new({"look": 1, "evidence_sha256": "y"}, [OPEN_LOOK])
    with pytest.raises(ValueError, match="was refused at look 1"):
        next_look([OPEN_LOOK | {"verdict": "refused"}], "p-hrad", "1", 3)
    with pytest.raises(ValueError, match="documents exhausted"):
        next_look([OPEN_LOOK, OPEN_LOOK | {"look": 3}], "p-hrad", "1", 3)
