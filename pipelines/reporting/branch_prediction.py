"""What the latency profile says that measured rounds should take: time only, as acceptance is each arm's own.

of prediction = measured tokens/s / predicted tokens/s = Σ predicted seconds / Σ measured seconds
"""

from itertools import accumulate

import pandas as pd

from pipelines.measuring.names import PLAIN, branch_arm
from predictors.latency import (
    BranchRound,
    LatencyProfile,
    Shape,
    branch_parallel_prediction,
    round_latency,
)


def predicted_seconds(run: pd.Series, profile: LatencyProfile) -> float:
    """Seconds of one measured run by the profile, from what its rounds were made of."""
    parts = branch_arm(run["arm"])
    sampled = run["temperature"] > 0
    if parts is None or not any(run["round_candidates"]):
        return _in_turn(run, profile, sampled)
    made = branch_rounds(run)
    told = branch_parallel_prediction(profile, made, int(run["tokens"]), int(run["prompt_tokens"]), sampled, parts.wall)
    return told.seconds


def branch_rounds(run: pd.Series) -> list[BranchRound]:
    """The rounds of a run of a branch-parallel arm, as the latency model asks for them."""
    names = ("submitted", "idle_levels", "levels", "drafted", "candidates", "law_known", "accepted", "ends_segment")
    columns = zip(*(map(int, run[f"round_{name}"]) for name in names), strict=True)
    hit = False  # whether the round before kept a branch
    made = []
    for context, values in zip(_contexts(run), columns, strict=True):
        submitted, idle, levels, drafted, candidates, law_known, accepted, ends_segment = values
        reached = min(accepted, submitted) == submitted
        made.append(
            BranchRound(
                context,
                submitted,
                idle,
                levels,
                drafted,
                candidates,
                continues=hit and not idle,  # a draft process that died drafts anew behind a hit
                law_known=bool(law_known),
                reached=reached,
            )
        )
        hit = not ends_segment
    return made


def _in_turn(run: pd.Series, profile: LatencyProfile, sampled: bool) -> float:
    """Plain decoding and chains: one phase after the other."""
    total = profile.latency("target_prefill", tokens=int(run["prompt_tokens"]))
    if run["arm"] != PLAIN:
        total += profile.latency("draft_prefill", tokens=int(run["prompt_tokens"]))
    for context, submitted in zip(_contexts(run), run["round_submitted"], strict=True):
        total += round_latency(profile, Shape.chain(int(submitted)), context, sampled)
    return float(total.seconds)


def _contexts(run: pd.Series) -> list[int]:
    """Cached tokens before each round: all committed ones but the newest."""
    emitted = [int(count) for count in run["round_emitted"]]
    return [int(run["prompt_tokens"]) + before for before in accumulate(emitted[:-1], initial=0)] if emitted else []
