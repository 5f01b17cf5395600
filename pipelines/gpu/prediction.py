"""What the latency profile says that measured rounds should take: time only, as acceptance is each arm's own.

of prediction = measured tokens/s / predicted tokens/s = Σ predicted seconds / Σ measured seconds
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.measuring.harness import BY_ROUND
from pipelines.measuring.names import PLAIN, branch_arm
from predictors.latency import BranchRound, LatencyProfile, branch_parallel_prediction, chain_latency

Row = Mapping[str, Any]


def predicted_seconds(run: Row, profile: LatencyProfile) -> float:
    """Seconds of one measured decode by the profile, from what its rounds (`BY_ROUND`) were made of."""
    arm, rounds, tokens = branch_arm(run["arm"]), run[BY_ROUND], run["prompt_tokens"]
    sampled = run["temperature"] > 0
    if arm is not None and any(row["candidates"] for row in rounds):
        made = branch_rounds(rounds)
        return branch_parallel_prediction(profile, made, run["tokens"], tokens, sampled, arm.wall).seconds
    total = profile.latency("target_prefill", tokens=tokens)  # plain decoding and chains: one phase after the other
    if run["arm"] != PLAIN:
        total += profile.latency("draft_prefill", tokens=tokens)
    for row in rounds:
        if not row["prefill"]:
            total += chain_latency(profile, row["submitted"], row["context"], sampled)
    return float(total.seconds)


def branch_rounds(rounds: Iterable[Row]) -> list[BranchRound]:
    """The rounds of a run of a branch-parallel arm, as the latency model reads them."""
    hit = False  # whether the round before kept a branch
    made = []
    for row in rounds:
        if row["prefill"]:
            continue
        made.append(
            BranchRound(
                row["context"],
                row["submitted"],
                row["idle_levels"],
                row["levels"],
                row["drafted"],
                row["candidates"],
                continues=hit and not row["idle_levels"],  # a draft process that died drafts anew after a hit
                law_known=row["law_known"],
                reached=row["accepted"] >= row["submitted"],
            )
        )
        hit = not row["ends_segment"]
    return made
