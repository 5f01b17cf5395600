"""Seconds that a latency profile gives the rounds that were really run: what to hold against measured ones."""

from collections.abc import Iterable

from predictors.latency.branching import BranchCosts
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import RoundShape, chain_latency, round_latency
from predictors.rounds import ReplayedRound, RoundRecord

OF_BRANCHES = ("submitted", "idle_levels", "levels", "drafted", "candidates", "law_known", "accepted", "ends_segment")


def rounds_seconds(rounds: Iterable[RoundRecord], prompt_tokens: int, profile: LatencyProfile, sampled: bool) -> float:
    """Seconds of ``rounds`` after the prefill of ``prompt_tokens``: chains, trees verified by traversal, or branches, of which
    both jobs count as if each had the device to itself. ``sampled``: at a temperature above 0."""
    total, context, kept = 0.0, prompt_tokens, False
    for made in rounds:
        if made.candidates:
            values = {name: getattr(made, name) for name in OF_BRANCHES}
            replayed = ReplayedRound(**values, context=context, survived=kept and not made.idle_levels)
            total += BranchCosts(profile, sampled).round(replayed)
        elif made.drafted > made.levels:
            rows = (made.drafted / made.levels,) * made.levels
            shape = RoundShape(rows, made.drafted, tree=made.drafted, rule="traversal")
            total += round_latency(profile, shape, context, sampled).seconds
        else:
            total += chain_latency(profile, made.submitted, context, sampled).seconds
        context, kept = context + made.emitted, not made.ends_segment
    return total
