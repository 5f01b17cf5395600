"""What rounds take on a machine, replayed ones among them, from its latency profile without its neighbours (`undisturbed`).

    round    = Σ_{i<passes} draft(1, context + i) + target(1 + submitted, context) + drawing + verification + readings + questions
             + first(1 + behind, context) - draft(1, context)                         if the draft model has to catch up first
             plain decoding's                                                         if nothing was drafted

``first`` is table `draft_first` of a draft that reads the target's states, which runs over all that was committed in every round;
of another it is ``draft``, and it is behind where rounds did without it.

A rule that stops in front of a token has paid for that token's law, and reading a law's numbers costs the host some time. Tokens
of a lookup take no pass and are not drawn. Prefills are the request's own. Left out: what a request takes to begin, what a decode
spends between its phases, and the search for a match. Costs in rounds of none are in units of the summed round of no tokens, not
of plain decoding's.
"""

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from predictors.latency.actions import undisturbed
from predictors.latency.profile import FIRST, LatencyProfile
from predictors.latency.throughput import RoundShape, plain_latency, round_latency
from predictors.rounds import ReplayedRound


class Prices:
    """Seconds on the machine of ``profile``; ``sampled``: at a temperature above 0. Kept once they are known:

    chain(drafted, context)         a round of a chain of so many tokens behind ``context`` cached ones
    plain(context)                  one of plain decoding
    drawing(tokens)                 so many tokens' laws and draws
    law(context)                    a draft pass and its law
    catching_up(behind, context)    what a round's first draft pass over so many tokens more than one takes longer
    """

    def __init__(self, profile: LatencyProfile, sampled: bool) -> None:
        self.profile, self.sampled = undisturbed(profile), sampled
        self._first = FIRST if FIRST in self.profile.tables else "draft"
        self.chain = cache(lambda drafted, context: self._round(RoundShape.of_chain(drafted), context))
        self.plain = cache(lambda context: plain_latency(self.profile, context, sampled).seconds)
        self.drawing = cache(self._drawing)
        self.law = cache(lambda context: self._pass(1, context) + self.drawing(1))
        self.catching_up = cache(self._catching_up)
        self._read = cache(lambda entropy: self._spent("reading", entropy=entropy))

    def prefill(self, tokens: int, drafts: bool) -> float:
        """Of a prompt of so many ``tokens``; ``drafts``: the draft's too."""
        return self._spent("target_prefill", tokens=tokens) + self._spent("draft_prefill", tokens=tokens) * drafts

    def rounds(self, rounds: Iterable[ReplayedRound], question: float = 0.0) -> float:
        """Of rounds on chains, each ``question`` to a model included. Rounds with branches have `BranchCosts`."""
        rounds = list(rounds)
        assert not any(one.candidates or one.idle_levels or one.survived for one in rounds), "a round with branches"
        return sum(
            (self.chain(one.submitted, one.context) if one.submitted or one.passes else self.plain(one.context))
            + self.looked_up(one.looked_up, one.submitted, one.context)
            + (self.catching_up(one.behind, one.context) if one.passes else 0.0)
            + sum(self.law(one.context + place) for place in range(one.submitted, one.passes))
            + self.reading(one.confidences, one.entropies)
            + one.asked * question
            for one in rounds
        )

    def reading(self, confidences: int, entropies: int) -> float:
        """Of the host reading laws: of so many the confidence, of so many the entropy too."""
        return sum(count * self._read(entropy) for entropy, count in enumerate((confidences, entropies)) if count)

    def looked_up(self, tokens: int, submitted: int, context: int) -> float:
        """What changes, below 0, where so many of a chain's ``submitted`` tokens came from a lookup."""
        if not tokens:
            return 0.0
        drawn = submitted - tokens
        passes = sum(self.law(context + place) - self.drawing(1) for place in range(drawn, submitted))
        return self.drawing(drawn) - self.drawing(submitted) - passes

    def draft_cost(self, gamma: int, context: float) -> float:
        """A drafted token of a chain of ``gamma`` in target passes: a round's drafting per token over all the rest of the
        round."""
        return (self.chain(gamma, context) / self._round(RoundShape((), gamma), context) - 1) / gamma

    def chain_costs(self, gamma: int, context: float, question: float = 0.0) -> tuple[float, ...]:
        """Rounds of 0, 1, … ``gamma`` drafted tokens, in rounds of none; about each token a ``question`` of so many seconds.
        Where accepted tokens are run over again, one is."""
        usual = self.catching_up(1, context) if self._first == FIRST else 0.0
        seconds = [
            self.chain(drafted, context) + drafted * question + usual * (drafted > 0) for drafted in range(gamma + 1)
        ]
        return tuple(one / seconds[0] for one in seconds)

    def lookup_costs(self, length: int, tails: Sequence[int], context: float) -> tuple[tuple[float, ...], ...]:
        """Rounds of 0, 1, … ``length`` tokens of a lookup, after which each of ``tails`` tokens are drawn, in rounds of none.
        Before a tail the draft model reads the lookup's tokens."""

        def seconds(tokens: int, tail: int) -> float:
            made = self._round(RoundShape((1,) * tail, tokens + tail, tail), context)
            return made + tokens * self.behind(tokens, context) if tail else made

        plain = self.chain(0, context)
        return tuple(tuple(seconds(tokens, tail) / plain for tokens in range(length + 1)) for tail in tails)

    def behind(self, tokens: int, context: float) -> float:
        """`catching_up` with so many ``tokens``, per token; none where noise has the wider pass faster."""
        return max(0.0, self.catching_up(tokens, context)) / max(tokens, 1)

    def _round(self, shape: RoundShape, context: float) -> float:
        return round_latency(self.profile, shape, context, self.sampled).seconds

    def _drawing(self, tokens: int) -> float:
        return self._spent("chain_drawing", drafted=tokens, sampled=int(self.sampled)) if tokens else 0.0

    def _catching_up(self, behind: int, context: float) -> float:
        if not behind and self._first != FIRST:
            return 0.0
        return self._spent(self._first, rows=1 + behind, context=context) - self._pass(1, context)

    def _pass(self, rows: float, context: float) -> float:
        return self._spent("draft", rows=rows, context=context)

    def _spent(self, table: str, **at: float) -> float:
        return self.profile.latency(table, **at).seconds


class PriceTable:
    """Rounds of at most ``depth`` tokens behind ``contexts``, priced in arrays."""

    def __init__(self, prices: Prices, contexts: np.ndarray, depth: int) -> None:
        self._prices, self._context_C = prices, np.unique(contexts)
        known = self._context_C.tolist()
        self._chain_CL = np.array(
            [[prices.chain(drafted, context) for drafted in range(depth + 1)] for context in known]
        )
        self._plain_C = np.array([prices.plain(context) for context in known])
        laws = (prices.law(context) for context in range(known[0], known[-1] + depth))
        self._laws_C = np.cumsum([0.0, *laws])  # of all passes behind contexts from the first one up to this one

        self._drawing_L = np.array([prices.drawing(drafted) for drafted in range(depth + 1)])

    def rounds(self, context_V: np.ndarray, submitted_V: np.ndarray, passes_V: np.ndarray) -> np.ndarray:
        """Seconds of rounds, without readings and questions."""
        place_V = np.searchsorted(self._context_C, context_V)
        none_V = (submitted_V == 0) & (passes_V == 0)
        chain_V = np.where(none_V, self._plain_C[place_V], self._chain_CL[place_V, submitted_V])
        first_V = context_V - self._context_C[0]
        return np.asarray(chain_V + self._laws_C[first_V + passes_V] - self._laws_C[first_V + submitted_V])

    def looked_up(self, submitted_V: np.ndarray, tokens_V: np.ndarray) -> np.ndarray:
        """What `rounds` leave out where ``tokens_V`` of the submitted came from a lookup."""
        drawing_V = (
            self._drawing_L[submitted_V - tokens_V] - self._drawing_L[submitted_V] + self._drawing_L[1] * tokens_V
        )
        return np.where(tokens_V > 0, drawing_V, 0.0)

    def catching_up(self, context_V: np.ndarray, passes_V: np.ndarray, behind_V: np.ndarray) -> np.ndarray:
        """And where the draft model is ``behind_V``."""
        pairs_2P, place_V = np.unique([behind_V, context_V], axis=1, return_inverse=True)
        catching_P = np.array([self._prices.catching_up(*pair) for pair in pairs_2P.T.tolist()])
        return np.where(passes_V > 0, catching_P[place_V], 0.0)
