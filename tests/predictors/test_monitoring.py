"""What is counted of a request, by hand, and what many requests say."""

import numpy as np
import pytest

from predictors.monitoring import AlarmLevel, Reference, RequestCounts, fractions_of
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
    fractions = fractions_of(vars(counts))
    assert fractions["accepted"] == (4, 4) and fractions["residual"] == pytest.approx((4 - 2.25, 5))
    assert fractions["distance"] == (16.0, 8) and fractions["feature 0"] == (8.0, 8)
    assert fractions["feature 1"] == (-(3 + 3 + 2 + 0), 8) and len(fractions) == 5


def test_a_hit_at_the_branch_point_is_accepted_and_no_forecasts_outcome():
    counts = counted([(3, 2, 3, [Forecast(2, 0.9, 1.0)])])
    assert (counts.accepted, counts.tested) == (3, 0)


def test_rounds_that_the_budget_cuts_do_not_count():
    counts = counted([(3, 4, 2, [])] * 3, budget=11)  # 10, 7 and 4 tokens are left, one of them the target's
    assert (counts.rounds, counts.emitted) == (2, 10)
    assert fractions_of(vars(counted([], depth=0))) == {}


def test_a_level_by_hand():
    """Ratio of sums 12 / 8; without each of three documents it is 9 / 5, 10 / 6 and 5 / 5."""
    level = AlarmLevel.of([(3, 3), (1, 1), (7, 3), (1, 1)], ["a", "b", "c", "b"])
    assert (level.mean, level.requests) == (1.5, 4)
    changes = np.array([9 / 5, 10 / 6, 5 / 5]) - 1.5
    assert level.error == pytest.approx(np.sqrt(2 / 3 * (changes**2).sum()))
    assert level.freedom == pytest.approx((9 + 4 + 9) ** 2 / (81 + 16 + 81) - 1)


def test_a_budget_does_not_change_what_is_expected():
    """Rounds of one law under budgets of 24 to 256 tokens; a mean of ratios differs by more than a tenth."""
    random, ratios, means = np.random.default_rng(0), [], []
    for budget in (24, 48, 256):
        fractions = []
        for _ in range(60_000 // budget):
            counts = RequestCounts(budget, 8)
            while counts.emitted < budget:
                accepted = min(int(random.geometric(0.3)) - 1, 8)
                counts.add(accepted + 1, 8, accepted, ())
            fractions.append(fractions_of(vars(counts))["accepted"])
        ratios.append(AlarmLevel.of(fractions, range(len(fractions))))
        means.append(np.mean([above / below for above, below in fractions]))
    expected = sum(0.7**place for place in range(1, 9))
    assert all(abs(level.mean - expected) < 3 * level.error for level in ratios) and ratios[0].error < 0.04
    assert means[0] - means[1] > 0.1 and means[1] - means[2] > 0.05


def test_requests_of_one_document_are_alike():
    """Requests that repeat a document's say no more of the ratio than one of each does."""
    values = np.random.default_rng(0).normal(size=30)
    fractions, names = [(5 * value, 5) for value in values], [str(place) for place in range(30)]
    alone, repeated = AlarmLevel.of(fractions, names), AlarmLevel.of(fractions * 4, names * 4)
    assert alone.error == pytest.approx(np.std(values, ddof=1) / np.sqrt(30)) and alone.freedom == pytest.approx(29)
    assert (repeated.error, repeated.freedom, repeated.requests) == pytest.approx((alone.error, 29, 120))
    assert AlarmLevel.of(fractions * 4, range(120)).error < 0.55 * alone.error
    assert AlarmLevel.of([(1, 1), (2, 1)], "ab").freedom == 1
    assert AlarmLevel.of([(1, 1), (2, 1)], "aa") is None and AlarmLevel.of([], []) is None
    assert AlarmLevel.of([(1, 1), (2, 1), (30, 30)], "abc") is None, "one outweighs the others"


def test_a_reference_has_what_its_requests_say():
    quiet, asked = counted([(2, 4, 1, [])]), counted([(2, 4, 1, [Forecast(0, 0.5, 3.0)])])
    reference = Reference.of([quiet, asked, asked], ["a", "b", "c"])
    assert reference.tokens == 3.0 and set(reference.levels) == {"accepted", "residual", "distance"}
    assert reference.levels["accepted"].requests == 3 and reference.levels["residual"].requests == 2
    assert set(Reference.of([quiet, asked], ["a", "b"]).levels) == {"accepted"}
