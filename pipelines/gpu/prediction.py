"""What the latency profile says that measured rounds should take: time only, as acceptance is each arm's own.

of prediction = measured tokens/s / predicted tokens/s = Σ predicted seconds / Σ measured seconds
"""

import pandas as pd

from pipelines.measuring.names import PLAIN, branch_arm
from predictors.latency import BranchRound, LatencyProfile, branch_parallel_prediction, chain_latency


def predicted_seconds(run: pd.Series, rounds: pd.DataFrame, profile: LatencyProfile) -> float:
    """Seconds of one measured run by the profile, from what its ``rounds`` were made of."""
    parts = branch_arm(run["arm"])
    sampled = run["temperature"] > 0
    if parts is None or not rounds["candidates"].any():
        return _sequential(run, rounds, profile, sampled)
    made = branch_rounds(rounds)
    told = branch_parallel_prediction(profile, made, int(run["tokens"]), int(run["prompt_tokens"]), sampled, parts.wall)
    return told.seconds


def branch_rounds(rounds: pd.DataFrame) -> list[BranchRound]:
    """The rounds of a run of a branch-parallel arm, as the latency model reads them."""
    names = ["context", "submitted", "idle_levels", "levels", "drafted", "candidates", "law_known", "accepted"]
    rows = rounds.loc[~rounds["prefill"], [*names, "ends_segment"]]
    hit = False  # whether the round before kept a branch
    made = []
    for values in rows.itertuples(index=False):
        context, submitted, idle, levels, drafted, candidates, law_known, accepted, ends_segment = map(int, values)
        reached = min(accepted, submitted) == submitted
        made.append(
            BranchRound(
                context,
                submitted,
                idle,
                levels,
                drafted,
                candidates,
                continues=hit and not idle,  # a draft process that died drafts anew after a hit
                law_known=bool(law_known),
                reached=reached,
            )
        )
        hit = not ends_segment
    return made


def _sequential(run: pd.Series, rounds: pd.DataFrame, profile: LatencyProfile, sampled: bool) -> float:
    """Plain decoding and chains: one phase after the other."""
    total = profile.latency("target_prefill", tokens=int(run["prompt_tokens"]))
    if run["arm"] != PLAIN:
        total += profile.latency("draft_prefill", tokens=int(run["prompt_tokens"]))
    for context, submitted in rounds.loc[~rounds["prefill"], ["context", "submitted"]].itertuples(index=False):
        total += chain_latency(profile, int(submitted), int(context), sampled)
    return float(total.seconds)
