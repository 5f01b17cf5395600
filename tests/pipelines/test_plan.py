"""Balanced incomplete blocks: every arm as often as any other, every two arms together about as often as any two."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from pipelines.measuring.measurement import rotation
from tests.pipelines.toy_bench import toy_prompts

ARMS = dict.fromkeys((f"arm-{number}" for number in range(10)), 1)
NAMES = list(ARMS)


@pytest.mark.parametrize("group", [1, 3, 4, 5, 9])
def test_arms_are_timed_equally_often_in_every_slice(group):
    prompts = toy_prompts(200)
    groups = rotation(prompts, ARMS, group, seed=0)
    assert all(len(set(names)) == group for names in groups)
    for wanted in ("code", "prose"):
        counts = Counter(
            n for prompt, names in zip(prompts, groups, strict=True) if prompt.slice == wanted for n in names
        )
        assert max(counts.values()) - min(counts[arm] for arm in ARMS) <= 1


def test_an_arm_with_more_turns_is_timed_so_much_more_often():
    turns = ARMS | {NAMES[0]: 3, NAMES[1]: 2}
    groups = rotation(toy_prompts(260), turns, 3, seed=0)
    assert all(len(set(names)) == 3 for names in groups)
    counts = Counter(name for names in groups for name in names)
    assert all(abs(counts[arm] - 60 * turns[arm]) <= turns[arm] for arm in ARMS), counts


def test_few_prompts_of_many_slices_time_every_arm_about_equally_often():
    """Of three prompts a slice no slice goes through all arms. The wrong twin: slices that know nothing of each other."""
    prompts = [replace(one, slice=f"slice {number % 8}") for number, one in enumerate(toy_prompts(24))]
    counts = Counter(name for names in rotation(prompts, ARMS, 1, seed=0) for name in names)
    assert {counts[arm] for arm in ARMS} == {2, 3}
    alone = Counter(
        name for start in range(8) for names in rotation(prompts[start::8], ARMS, 1, seed=start) for name in names
    )
    assert {alone[arm] for arm in ARMS} > {2, 3}


def test_every_two_arms_meet_about_equally_often():
    groups = rotation(toy_prompts(600), ARMS, 5, seed=1)
    met = Counter(frozenset(two) for names in groups for two in combinations(names, 2))
    expected = 600 * (5 * 4 / 2) / 45
    assert len(met) == 45 and all(0.75 * expected < count < 1.25 * expected for count in met.values())


def test_blocks_that_never_change_would_not_balance():
    """The wrong twin: arms in one fixed order meet their neighbours only."""
    fixed = [tuple(NAMES[(5 * place + step) % 10] for step in range(5)) for place in range(600)]
    met = Counter(frozenset(two) for names in fixed for two in combinations(names, 2))
    assert len(met) < 45


def test_more_prompts_and_another_order_of_arms_change_no_earlier_prompt():
    few = rotation(toy_prompts(20), ARMS, 4, seed=3)
    assert rotation(toy_prompts(40), dict.fromkeys(reversed(NAMES), 1), 4, seed=3)[:20] == few
    assert rotation(toy_prompts(20), ARMS, 4, seed=4) != few


def test_all_arms_where_there_are_no_more_than_a_group():
    few = dict.fromkeys(NAMES[:3], 1)
    assert [set(names) for names in rotation(toy_prompts(2), few, 3, seed=0)] == [set(few)] * 2
    assert rotation(toy_prompts(2), {}, 3, seed=0) == [(), ()]
