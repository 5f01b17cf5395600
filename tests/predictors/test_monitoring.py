"""What is counted of a request, by hand, and what many requests say."""

import numpy as np
import pytest

from predictors.monitoring import Level, Reference, RequestCounts
from predictors.rounds import Forecast


def counted(rounds, budget=100, depth=4):
    counts = RequestCounts(budget, depth)
    for one in rounds:
        counts.add(*one)
    return counts


def test_rounds_by_hand():
    """Four rounds: a rejection, all accepted, a rejection in front of the last forecast, and nothing submitted."""
    said = [Forecast(place, 0.25 * (place + 1), 2.0, (1.0, -place)) for place in range(3)]
    counts = counted([(2, 4, 1, said), (4, 3, 3, said), (1, 4, 0, said[2:]), (1, 0, 0, said[:1])])
    # tested: places 0 and 1 (accepted, then not), places 0, 1, 2 (all accepted), none, none
    assert (counts.tested, counts.outcomes) == (5, 1 + 3)
    assert counts.probability == pytest.approx((0.25 + 0.5) + (0.25 + 0.5 + 0.75))
    assert (counts.rounds, counts.submitted, counts.accepted, counts.emitted) == (4, 11, 4, 9)
    assert (counts.questions, counts.distance) == (8, 16.0)
    features = {"feature 0": 1.0, "feature 1": -(3 + 3 + 2 + 0) / 8}
    known = {"accepted": 1.0, "residual": (4 - 2.25) / 5, "distance": 2.0}
    assert counts.statistics() == pytest.approx(known | features)


def test_a_hit_at_the_branch_point_is_accepted_and_no_forecasts_outcome():
    counts = counted([(3, 2, 3, [Forecast(2, 0.9, 1.0)])])
    assert (counts.accepted, counts.tested) == (3, 0)


def test_rounds_that_the_budget_cuts_do_not_count():
    counts = counted([(3, 4, 2, [])] * 3, budget=11)  # 10, 7 and 4 tokens are left, one of them the target's
    assert (counts.rounds, counts.emitted) == (2, 10)
    assert counted([], depth=0).statistics() == {}


def test_requests_of_one_document_are_alike():
    """Requests that repeat a document's say no more of the mean than one of each does."""
    values = np.random.default_rng(0).normal(size=30).tolist()
    names = [str(place) for place in range(30)]
    alone, repeated = Level.of(values, names), Level.of(values * 4, names * 4)
    assert alone.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(30))
    assert repeated.error == pytest.approx(alone.error) and (repeated.requests, repeated.documents) == (120, 30)
    assert Level.of(values * 4, [str(place) for place in range(120)]).error < 0.55 * alone.error
    assert Level.of([1.0, 2.0], ["a", "a"]) is None and Level.of([], []) is None


def test_a_reference_has_what_its_requests_say():
    quiet, asked = counted([(2, 4, 1, [])]), counted([(2, 4, 1, [Forecast(0, 0.5, 3.0)])])
    reference = Reference.of([quiet, asked, asked], ["a", "b", "c"])
    assert reference.tokens == 3.0 and set(reference.levels) == {"accepted", "residual", "distance"}
    assert reference.levels["accepted"].requests == 3 and reference.levels["residual"].requests == 2
    assert set(Reference.of([quiet, asked], ["a", "b"]).levels) == {"accepted"}
