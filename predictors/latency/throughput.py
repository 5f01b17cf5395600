"""Tokens per second of static chains, of how many drafted tokens survive and what that takes by a latency profile.

If every token is accepted with α, independently, a chain of γ accepts i tokens with probability

    α^i (1-α)  for i < γ,    α^γ  for i = γ

Expected time E of a request for exactly n tokens after a prompt of P, drafting chains of γ. The prefill emits the first token;
with R tokens to go a round drafts m = min(γ, R - 1), accepts i of them with probability a_m(i) and emits i + 1:

    E = target_prefill(P) + [γ > 0] draft_prefill(P) + E(n - 1),    E(0) = 0
    E(R) = T_m(P + n - R - 1) + Σ_{i<=m} a_m(i) E(R - 1 - i)

T is the round's price (`predictors.latency.prices`). Left out: the distribution and draw of the prefill's own token. Source:
specification of drafting, section 10 (E[X] of the truncated geometric distribution). Shape suffixes: G entries 0 to γ.
"""

from collections.abc import Sequence

import numpy as np

from predictors.latency.prices import RoundPrices
from predictors.latency.profile import QUARTILES, Latency, LatencyProfile

SUM_TOLERANCE = 1e-6


def iid_accepted_law(alpha: float, gamma: int) -> np.ndarray:
    """Truncated geometric law [gamma + 1] of the accepted tokens of a chain of ``gamma``, each accepted with ``alpha``."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}.")
    require_at_least("gamma", gamma, 0)
    reached_G = alpha ** np.arange(gamma + 1)
    return np.append(reached_G[:-1] * (1 - alpha), reached_G[-1])


def truncated_law(accepted_law: Sequence[float] | np.ndarray, gamma: int) -> np.ndarray:
    """Law [gamma + 1] of min(accepted, ``gamma``): that of a shorter chain. ``accepted_law``: of ``gamma`` tokens or more."""
    law_G = np.asarray(accepted_law, dtype=np.float64)
    require_at_least("gamma", gamma, 0)
    if law_G.ndim != 1 or len(law_G) <= gamma:
        raise ValueError(
            f"an accepted distribution of shape {law_G.shape} does not reach gamma={gamma}: pass {gamma + 1} probabilities."
        )
    if not (law_G >= 0).all() or abs(law_G.sum() - 1) > SUM_TOLERANCE:
        raise ValueError(f"an accepted distribution must be >= 0 and sum to 1, got {law_G.tolist()}.")
    return np.append(law_G[:gamma], law_G[gamma:].sum())


def require_at_least(name: str, value: float, least: float) -> None:
    """`ValueError` if ``value`` is below ``least``."""
    if not value >= least:
        raise ValueError(f"{name} must be >= {least}, got {value}.")


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
    tokens of a chain of ``gamma`` tokens or more (it is cut at ``gamma``); ``sampled``: at a temperature above 0. Its spread is
    that of latencies that rise and fall together: it never promises more than the measurements hold."""
    require_at_least("prompt_tokens", prompt_tokens, 1)
    require_at_least("new_tokens", new_tokens, 1)
    law_G = truncated_law(accepted_law, gamma)
    laws = [truncated_law(law_G, drafted) for drafted in range(gamma + 1)]
    seconds, low, high = (
        _seconds(RoundPrices(profile.only(one), sampled, quiet=False), laws, prompt_tokens, new_tokens)
        for one in QUARTILES
    )
    return Latency(seconds, min(low, seconds), max(high, seconds))


def _seconds(prices: RoundPrices, laws: Sequence[np.ndarray], prompt_tokens: int, new_tokens: int) -> float:
    """E, by the distributions of accepted tokens of chains of 0, 1, … γ."""
    seconds_R = np.zeros(new_tokens)  # R: tokens to go
    for remaining in range(1, new_tokens):
        drafted = min(len(laws) - 1, remaining - 1)
        cached = prompt_tokens + new_tokens - remaining - 1  # the newest token is not
        spent = prices.chain(drafted, cached) if drafted else prices.plain(cached)
        after_G = seconds_R[remaining - 1 - drafted : remaining][::-1]
        seconds_R[remaining] = spent + laws[drafted] @ after_G
    return prices.prefill(prompt_tokens, drafts=len(laws) > 1) + float(seconds_R[-1])
