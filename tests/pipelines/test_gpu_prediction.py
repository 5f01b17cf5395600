"""Predicted seconds of measured rounds, by hand on affine costs."""

import pandas as pd
import pytest

from pipelines.gpu.prediction import branch_rounds, predicted_seconds
from predictors.latency import BranchRound, Shape, branch_round_latency, round_latency
from tests.predictors.affine_profile import COSTS, toy_profile

PROFILE = toy_profile()
ROUNDS = pd.DataFrame(
    {  # the prefill; a block drafted with the target idle and hit; what it retained, rejected; nothing left to branch for
        "prefill": [True, False, False, False],
        "context": [0, 10, 13, 14],
        "submitted": [0, 2, 1, 1],
        "idle_levels": [0, 2, 0, 1],
        "levels": [0, 5, 3, 1],
        "drafted": [0, 2 + 8, 7, 1],
        "candidates": [0, 3, 3, 0],
        "law_known": [False, False, True, False],
        "accepted": [0, 3, 0, 1],
        "ends_segment": [True, False, True, True],
    }
)
RUN = {"arm": "pearl-4", "temperature": 1.0, "prompt_tokens": 10, "tokens": 7}


def test_rounds_are_read_in_order():
    assert branch_rounds(ROUNDS) == [
        BranchRound(10, 2, 2, 5, 10, 3, continues=False, law_known=False, reached=True),
        BranchRound(13, 1, 0, 3, 7, 3, continues=True, law_known=True, reached=False),
        BranchRound(14, 1, 1, 1, 1, 0, continues=False, law_known=False, reached=True),
    ]


@pytest.mark.parametrize("arm, concurrent", [("pearl-4", False), ("pearl-4-wall", True)])
def test_branch_rounds_on_either_clock(arm, concurrent):
    rounds = branch_rounds(ROUNDS)
    expected = sum(branch_round_latency(PROFILE, made, True, concurrent).seconds for made in rounds)
    predicted = predicted_seconds(pd.Series(RUN | {"arm": arm}), ROUNDS, PROFILE)
    prefill = predicted - expected
    alone = max(COSTS["target_prefill"](10), COSTS["draft_prefill"](10))
    assert prefill == pytest.approx(alone) if not concurrent else prefill > alone


@pytest.mark.parametrize("arm", ["autoregressive", "chain-2"])
def test_arms_that_draft_in_turn(arm):
    run, rounds = RUN | {"arm": arm}, ROUNDS.assign(candidates=0)
    seconds = COSTS["target_prefill"](10) + (arm != "autoregressive") * COSTS["draft_prefill"](10)
    for context, submitted in ((10, 2), (13, 1), (14, 1)):
        seconds += round_latency(PROFILE, Shape.chain(submitted), context, sampled=True).seconds
    assert predicted_seconds(pd.Series(run), rounds, PROFILE) == pytest.approx(seconds)
