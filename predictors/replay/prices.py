"""What replayed rounds take on a machine, from its latency profile without its neighbours (`undisturbed`).

    round    = Σ_{i<passes} draft(1, context + i) + target(1 + submitted, context) + drawing + verification + readings + questions

A rule that stops in front of a token has paid for that token's law, and reading a law's numbers costs the host some time.
Prefills are the request's own. Left out: what a request takes to begin, and what a decode spends between its phases.
"""

from collections.abc import Iterable
from functools import cache

import numpy as np

from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import Shape, round_latency
from predictors.replay.chains import ReplayedRound


class Prices:
    """Seconds on the machine of ``profile``; ``sampled``: at a temperature above 0."""

    def __init__(self, profile: LatencyProfile, sampled: bool) -> None:
        self.profile = undisturbed(profile)
        self._sampled = sampled
        self.chain = cache(self._chain)
        self.law = cache(self._law)
        self._read = cache(lambda entropy: self.profile.latency("reading", entropy=entropy).seconds)

    def prefill(self, tokens: int, drafts: bool) -> float:
        """Of a prompt of so many ``tokens``; ``drafts``: the draft's too."""
        seconds = self.profile.latency("target_prefill", tokens=tokens).seconds
        return seconds + self.profile.latency("draft_prefill", tokens=tokens).seconds * drafts

    def rounds(self, rounds: Iterable[ReplayedRound], question: float = 0.0) -> float:
        """Of rounds on chains, each ``question`` to a model included."""
        return sum(
            self.chain(one.submitted, one.context)
            + sum(self.law(one.context + place) for place in range(one.submitted, one.passes))
            + self.reading(one.confidences, one.entropies)
            + one.asked * question
            for one in rounds
        )

    def reading(self, confidences: int, entropies: int) -> float:
        """Of the host reading laws: of so many the confidence, of so many the entropy too."""
        return sum(count * self._read(entropy) for entropy, count in enumerate((confidences, entropies)) if count)

    def _chain(self, submitted: int, context: int) -> float:
        """Of a round of ``submitted`` tokens behind ``context`` cached ones."""
        return round_latency(self.profile, Shape.chain(submitted), context, self._sampled).seconds

    def _law(self, context: int) -> float:
        """Of a draft pass and its law."""
        drawn = self.profile.latency("chain_drawing", drafted=1, sampled=int(self._sampled)).seconds
        return self.profile.latency("draft", rows=1, context=context).seconds + drawn


class PriceTable:
    """Rounds of at most ``depth`` tokens behind ``contexts``, priced in arrays."""

    def __init__(self, prices: Prices, contexts: np.ndarray, depth: int) -> None:
        self._context_C = np.unique(contexts)
        known = self._context_C.tolist()
        self._chain_CL = np.array(
            [[prices.chain(drafted, context) for drafted in range(depth + 1)] for context in known]
        )
        laws = (prices.law(context) for context in range(known[0], known[-1] + depth))
        self._laws_C = np.cumsum([0.0, *laws])  # of all passes behind contexts from the first one up to this one

    def rounds(self, context_V: np.ndarray, submitted_V: np.ndarray, passes_V: np.ndarray) -> np.ndarray:
        """Seconds of rounds, without readings and questions."""
        chain_V = self._chain_CL[np.searchsorted(self._context_C, context_V), submitted_V]
        first_V = context_V - self._context_C[0]
        return np.asarray(chain_V + self._laws_C[first_V + passes_V] - self._laws_C[first_V + submitted_V])
