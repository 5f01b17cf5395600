"""Predicted seconds of measured rounds, by hand on affine costs."""

import pytest

from pipelines.gpu.figures import branch_rounds, predicted_seconds
from pipelines.measuring.harness import BY_ROUND
from predictors.latency.branching import BranchCosts
from predictors.latency.throughput import RoundShape, round_latency
from tests.predictors.affine_profile import COSTS, toy_profile

PROFILE = toy_profile()
OF_ROUND = (
    "prefill",
    "context",
    "submitted",
    "idle_levels",
    "levels",
    "drafted",
    "candidates",
    "law_known",
    "accepted",
)
ROUNDS = [  # the prefill; a block drafted with the target idle and hit; what it retained, rejected; nothing left to branch for
    dict(zip((*OF_ROUND, "ends_segment"), row, strict=True))
    for row in (
        (True, 0, 0, 0, 0, 0, 0, False, 0, True),
        (False, 10, 2, 2, 5, 2 + 8, 3, False, 3, False),
        (False, 13, 1, 0, 3, 7, 3, True, 0, True),
        (False, 14, 1, 1, 1, 1, 0, False, 1, True),
    )
]
RUN = {"arm": "pearl-4", "temperature": 1.0, "prompt_tokens": 10, "tokens": 7, BY_ROUND: ROUNDS}


def test_rounds_are_read_in_order():
    made = branch_rounds(ROUNDS)
    assert [{name: getattr(one, name) for name in OF_ROUND[1:]} for one in made] == [
        {name: row[name] for name in OF_ROUND[1:]} for row in ROUNDS[1:]
    ]
    assert [one.survived for one in made] == [False, True, False]


def test_branch_rounds_on_the_virtual_clock():
    rounds = branch_rounds(ROUNDS)
    expected = sum(BranchCosts(PROFILE, True).round(made) for made in rounds)
    predicted = predicted_seconds(RUN | {"arm": "pearl-4"}, PROFILE)
    prefill = predicted - expected
    alone = max(COSTS["target_prefill"](10), COSTS["draft_prefill"](10))
    assert prefill == pytest.approx(alone)


@pytest.mark.parametrize("arm", ["autoregressive", "chain-2"])
def test_arms_that_draft_in_turn(arm):
    run = RUN | {"arm": arm, BY_ROUND: [row | {"candidates": 0} for row in ROUNDS]}
    seconds = COSTS["target_prefill"](10) + (arm != "autoregressive") * COSTS["draft_prefill"](10)
    for context, submitted in ((10, 2), (13, 1), (14, 1)):
        seconds += round_latency(PROFILE, RoundShape.of_chain(submitted), context, sampled=True).seconds
    assert predicted_seconds(run, PROFILE) == pytest.approx(seconds)
