"""Branch-parallel rounds, requests and the γ that hides: on affine costs by hand."""

import dataclasses

import numpy as np
import pytest

from predictors.latency.prices import LONGEST_BRANCH, RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.rounds import ReplayedRound
from tests.predictors.affine_profile import PROFILE


def round_of(context, submitted, idle_levels, reached, **counts):
    """A round whose whole block was accepted (``reached``), or none of it."""
    accepted = submitted if reached else 0
    return ReplayedRound(context=context, submitted=submitted, idle_levels=idle_levels, accepted=accepted, **counts)


# 64 tokens cached. Three drafted with the target idle, to the cap; two candidates, then levels of 2, 2 and 1 tokens.
IDLE = round_of(64, 3, 3, reached=False, levels=7, drafted=10, candidates=2)
# Two tokens of the surviving branch retained, not all; three candidates and one level of 3; all accepted.
RETAINED = round_of(64, 2, 0, reached=True, levels=2, drafted=6, candidates=3, survived=True, law_known=True)
# Nothing kept, nothing tried: the end of the budget.
LAST = round_of(64, 0, 0, reached=True, levels=0, drafted=0, candidates=0)


def of_medians(profile, sampled=False):
    return RoundPrices(profile, sampled, quiet=False)


def seconds(made, sampled=False):
    return of_medians(PROFILE, sampled).branch_round(made)


def test_a_round_after_an_idle_draft_stage_by_hand():
    idle = (1.25 + 64 / 64) + (1.25 + 65 / 64) + (1.25 + 66 / 64) + 0.125 * 3
    target = (9 + 0.5 * 4 + 64 / 16) + (0.5 + 0.25 * 3)
    point = (1.25 + 67 / 64) + (0.25 + 0.125 * 2)
    rows = 5 / 3
    levels = sum((1 + 0.25 * rows + (67 + place * rows) / 64) + (0.125 + 0.0625 * rows) for place in range(3))
    assert point + levels < target
    assert seconds(IDLE) == pytest.approx(idle + target)
    slow = dataclasses.replace(IDLE, levels=7 + 4, drafted=10 + 4 * 2)
    rows = 13 / 7
    levels = sum((1 + 0.25 * rows + (67 + place * rows) / 64) + (0.125 + 0.0625 * rows) for place in range(7))
    assert point + levels > target  # now the draft is the slower one
    assert seconds(slow) == pytest.approx(idle + point + levels)
    assert seconds(slow) != pytest.approx(idle + point + levels + target)  # the wrong variant: one after the other


def test_a_round_behind_a_surviving_branch_by_hand():
    """No idle pass, no pass at the branch point, and the candidates are verified."""
    target = (9 + 0.5 * 3 + 64 / 16) + (0.5 + 0.25 * 2 + 1)
    assert seconds(RETAINED, sampled=True) == pytest.approx(target + 0.375 + 0.25 * 3)
    unreached = dataclasses.replace(RETAINED, accepted=1)
    assert seconds(unreached, sampled=True) == pytest.approx(target)


def wide(made):
    """The same round with so many levels of 3 that the draft is the slower one."""
    return dataclasses.replace(made, levels=made.idle_levels + 21, drafted=made.idle_levels + made.candidates + 60)


def test_a_law_that_retention_left_saves_a_pass_and_one_that_stopped_idle_drafting_moves_it():
    known, unknown = wide(RETAINED), dataclasses.replace(wide(RETAINED), law_known=False)
    assert seconds(unknown) - seconds(known) == pytest.approx(1.25 + 66 / 64)
    cut = dataclasses.replace(wide(IDLE), law_known=True)
    assert cut.idle_passes == 4 and wide(IDLE).idle_passes == 3
    # its pass is idle instead, where it is drawn from like any other: nothing is saved while the draft is the slower one
    assert seconds(cut) - seconds(wide(IDLE)) == pytest.approx(0.125)
    # the wrong variant, which forgets that pass, would save it
    assert seconds(cut) > seconds(wide(IDLE))
    hidden = dataclasses.replace(IDLE, law_known=True)  # and where the target is the slower one it is lost
    assert seconds(hidden) - seconds(IDLE) == pytest.approx(0.125 + 1.25 + 67 / 64)


def test_a_round_without_branches_is_the_targets():
    """Or a level that a controller wanted no candidates for: there is nothing to grow or to verify."""
    assert seconds(LAST) == pytest.approx(9.5 + 4 + 0.5)
    none = dataclasses.replace(RETAINED, levels=1, drafted=0, candidates=0)
    assert seconds(none) == pytest.approx(9 + 0.5 * 3 + 64 / 16 + 0.5 + 0.25 * 2)


def test_the_rows_of_a_level_are_the_mean_of_those_that_went_on():
    assert IDLE.rows == pytest.approx(5 / 3) and RETAINED.rows == 3 and LAST.rows == 0
    careless = dataclasses.replace(IDLE, drafted=3 + 4 * 2)  # the wrong variant: all branches go on
    assert branch_seconds(careless) > branch_seconds(IDLE)


def branch_seconds(made):
    """Of a round whose target takes no time."""
    tables = {name: t if name != "target" else level(t, 1e-9) for name, t in PROFILE.tables.items()}
    return of_medians(LatencyProfile(tables, "toy", {}, {})).branch_round(made)


def level(table, value):
    return table.of(np.full_like(table.median, value))


def test_a_request_is_its_prefills_and_its_rounds():
    rounds = [IDLE, RETAINED, LAST]
    made = of_medians(PROFILE, sampled=True).branch_request(iter(rounds), 63)
    total = (10 + 63 / 2) + sum(seconds(each, sampled=True) for each in rounds)  # the draft's prefill hides
    assert made == pytest.approx(total)
    tables = {**PROFILE.tables, "draft_prefill": level(PROFILE.tables["draft_prefill"], 100)}
    slow = LatencyProfile(tables, "toy", {}, {})
    assert of_medians(slow).branch_request([], 64) == pytest.approx(100), (
        "a slow draft's prefill is the one that counts"
    )


@pytest.mark.parametrize(("submitted", "candidates", "context"), [(0, 1, 1), (4, 4, 64), (8, 2, 200), (6, 9, 10)])
def test_the_balanced_gamma_is_the_last_that_hides(submitted, candidates, context):
    """By rounds of full branches: at γ the target decides, at γ + 1 the branches."""
    gamma = of_medians(PROFILE, True).balanced_gamma(submitted, candidates, context)
    alone = round_of(context, submitted, 0, reached=False, levels=0, drafted=0, survived=True)
    alone = dataclasses.replace(alone, accepted=-1)  # no verdict on candidates, even after an empty block

    def of(length):
        drafted = candidates * (1 + length)
        return dataclasses.replace(alone, levels=1 + length, drafted=drafted, candidates=candidates)

    assert seconds(of(gamma), True) == pytest.approx(seconds(alone, True))
    assert seconds(of(gamma + 1), True) > seconds(alone, True) + 1e-6


def test_the_balanced_gamma_by_hand():
    # target 9 + 2.5 + 4 + .5 + 1 = 17; point 1.25 + 68/64 + .25 + .25 = 2.8125; levels 1.5 + (68 + 2 j)/64 + .25 = 2.8125 + j/32
    assert of_medians(PROFILE).balanced_gamma(4, 2, 64) == 4


def test_the_balanced_gamma_of_a_slow_draft_is_none_and_of_one_without_cost_the_longest():
    def with_draft(value):
        tables = {
            **PROFILE.tables,
            **{name: level(PROFILE.tables[name], value) for name in ("draft", "branch_drawing")},
        }
        return LatencyProfile(tables, "toy", {}, {})

    assert of_medians(with_draft(20.0)).balanced_gamma(4, 2, 64) == 0
    assert of_medians(with_draft(1e-9)).balanced_gamma(4, 2, 64) == LONGEST_BRANCH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": -1}, "no counts below 0"),
        ({"levels": 2}, "no fewer levels than idle ones"),
        ({"idle_levels": 1}, "drafted with the target idle, or retained, never both"),
        ({"survived": True}, "drafted with the target idle, or retained, never both"),
        ({"candidates": 0}, "branches have candidates"),
        ({"levels": 3}, "branches have candidates"),
        ({"drafted": 7}, "a token on every level"),
        ({"candidates": 0, "drafted": 3}, "a token on every level"),
    ],
)
def test_impossible_rounds_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        seconds(dataclasses.replace(IDLE, **changes))
