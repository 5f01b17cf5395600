"""Tokens per second of static chains, from a latency profile and a distribution of accepted lengths.

Expected time E of a request for exactly n tokens after a prompt of P, drafting chains of γ. The prefill emits the first token;
with R tokens to go a round drafts m = min(γ, R - 1), accepts i of them with probability a_m(i) and emits i + 1:

    E = target_prefill(P) + [γ > 0] draft_prefill(P) + E(n - 1),    E(0) = 0
    E(R) = T_m(P + n - R - 1) + Σ_{i<=m} a_m(i) E(R - 1 - i)

T is the round's price (`predictors.latency.prices`). Source: specification of drafting, section 10. Left out: the distribution
and draw of the prefill's own token.
"""

from collections.abc import Sequence

import numpy as np

from predictors.latency.acceptance import require_at_least, truncated_law
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import QUARTILES, Latency


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
