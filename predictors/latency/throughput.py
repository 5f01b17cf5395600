"""Tokens per second from a latency profile and an acceptance law.

Time of one round at context l, from draft passes of r_0, r_1, ... rows, N tree nodes in the target pass, and the work outside
the models: drawing tokens one after the other (chain) or beside each other (tree), and verification by the rule's own table.

    T(l) = Σ_i draft(r_i, l + i) + target(1 + N, l) + verification(N) + chain_drawing(tokens) + tree_drawing(tokens)

A drafted chain has γ passes of one row and N = γ; trees: `predictors.latency.actions`.

Where nothing is drafted, passes follow passes, and find warmer caches than behind a draft's: such a round is scaled to how plain
decoding ran.

    T_plain(l) = T(l) plain(l') / T(l')      l': where it was measured

Expected time E of a request for exactly n tokens after a prompt of P, drafting chains of γ. The prefill emits the first token;
with R tokens to go a round drafts m = min(γ, R - 1), accepts i of them with probability a_m(i) and emits i + 1:

    E = target_prefill(P) + [γ > 0] draft_prefill(P) + E(n - 1),    E(0) = 0
    E(R) = T_m(P + n - R - 1) + Σ_{i<=m} a_m(i) E(R - 1 - i)

Sources: specification of verification, section 8 (round); specification of drafting, section 10. Branch-parallel decoding:
`predictors.latency.branching`.

Left out: the law and draw of the prefill's own token; and that a chain accepted whole leaves the draft model one token behind,
which the runtime feeds with the next round's first pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictors.latency.acceptance import require_at_least, truncated_law
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import Latency

# Tables of rules that chains and trees are verified by anyway; others have one by their own name, at temperatures above 0.
VERIFICATION = {"block": "chain_verification", "tokenwise": "chain_verification", "traversal": "tree_verification"}


@dataclass(frozen=True)
class RoundShape:
    """What one round asks: the draft passes' ``rows`` in order; the ``nodes`` that target and verification ``rule`` see;
    tokens drawn one after the other (``chain``) and beside each other (``tree``). Means of many rounds need not be whole."""

    rows: tuple[float, ...]
    nodes: float
    chain: int = 0
    tree: float = 0
    rule: str = "block"

    @staticmethod
    def of_chain(gamma: int) -> "RoundShape":
        """A chain of ``gamma`` tokens; 0 is plain decoding."""
        return RoundShape((1,) * gamma, gamma, gamma)


def round_latency(profile: LatencyProfile, shape: RoundShape, context: float, sampled: bool) -> Latency:
    """Seconds of one round behind ``context`` cached tokens; ``sampled``: at a temperature above 0."""
    chance = {"sampled": int(sampled)}
    total = profile.latency("target", tokens=1 + shape.nodes, context=context)
    for place, rows in enumerate(shape.rows):
        total += profile.latency("draft", rows=rows, context=context + place)
    if shape.rule in VERIFICATION:
        total += profile.latency(VERIFICATION[shape.rule], drafted=shape.nodes, **chance)
    else:
        total += profile.latency(f"verification_{shape.rule}", drafted=shape.nodes)
    if shape.chain:
        total += profile.latency("chain_drawing", drafted=shape.chain, **chance)
    if shape.tree:
        total += profile.latency("tree_drawing", drafted=shape.tree, **chance)
    return total


def plain_latency(profile: LatencyProfile, context: float, sampled: bool) -> Latency:
    """Seconds of a round of plain decoding as it runs; the sum of its cells in a profile without table ``plain``."""
    summed = round_latency(profile, RoundShape.of_chain(0), context, sampled)
    if "plain" not in profile.tables:
        return summed
    measured = profile.tables["plain"].axes["context"][0]
    ran = profile.latency("plain", context=measured).seconds
    return summed * (ran / round_latency(profile, RoundShape.of_chain(0), measured, sampled=False).seconds)


def chain_latency(profile: LatencyProfile, drafted: int, context: float, sampled: bool) -> Latency:
    """Seconds of a round of so many ``drafted`` tokens, one after the other; of none as plain decoding runs."""
    if not drafted:
        return plain_latency(profile, context, sampled)
    return round_latency(profile, RoundShape.of_chain(drafted), context, sampled)


def generation_latency(
    profile: LatencyProfile,
    accepted_law: Sequence[float] | np.ndarray,
    gamma: int,
    prompt_tokens: int,
    new_tokens: int,
    sampled: bool,
) -> Latency:
    """Expected time of generating exactly ``new_tokens`` with chains of ``gamma`` (0: plain decoding), prefills and the end of
    the budget included; no end-of-sequence token ends the output early. ``accepted_law``: probabilities of 0, 1, ... accepted
    tokens of a chain of ``gamma`` tokens or more (it is cut at ``gamma``); ``sampled``: at a temperature above 0."""
    require_at_least("prompt_tokens", prompt_tokens, 1)
    require_at_least("new_tokens", new_tokens, 1)
    law_G = truncated_law(accepted_law, gamma)
    seconds_R = [Latency(0.0, 0.0, 0.0)]  # R: tokens to go
    for remaining in range(1, new_tokens):
        drafted = min(gamma, remaining - 1)
        cached = prompt_tokens + new_tokens - remaining - 1  # the newest token is not
        seconds = chain_latency(profile, drafted, cached, sampled)
        for accepted, probability in enumerate(truncated_law(law_G, drafted).tolist()):
            seconds += probability * seconds_R[remaining - 1 - accepted]
        seconds_R.append(seconds)
    total = profile.latency("target_prefill", tokens=prompt_tokens) + seconds_R[-1]
    return total + profile.latency("draft_prefill", tokens=prompt_tokens) if gamma > 0 else total
