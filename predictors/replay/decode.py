"""Whole decodes of recorded texts: which policy would have taken how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter

from predictors.controllers.base import Controller
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import ChainPolicy, replayed
from predictors.replay.text import RecordedText
from predictors.rounds import BranchSettings, ReplayedRound

COUNTS = ("submitted", "passes", "accepted", "asked", "looked_up")  # of rounds


@dataclass(frozen=True)
class Decode:
    """One text decoded: new ``tokens`` in ``seconds``, and sums over its ``rounds`` after the prefill."""

    tokens: int
    seconds: float
    rounds: int
    submitted: int
    passes: int
    accepted: int
    asked: int
    looked_up: int

    @staticmethod
    def of(text: RecordedText, rounds: Sequence[ReplayedRound], seconds: float) -> "Decode":
        """Sum up the ``rounds`` of a text."""
        counts = {name: sum(getattr(one, name) for one in rounds) for name in COUNTS}
        return Decode(text.length, seconds, len(rounds), **counts)


def plain_rounds(text: RecordedText) -> list[ReplayedRound]:
    """List the rounds of the target alone: one for each token."""
    return [ReplayedRound(context=text.prompt_tokens + row, emitted=1) for row in range(text.length - 1)]


def clairvoyant(text: RecordedText, depth: int, prices: RoundPrices) -> list[ReplayedRound]:
    """The rounds of the oracle for chains of at most ``depth`` tokens: it knows what will be accepted and, over the whole text,
    drafts what takes least time.

        best(s) = min_{m <= cap(s)} round(m) + best(s + min(N(s), m) + 1)           best(end) = 0

    N(s) is what the verifier would accept from row s. No rule that decides when to stop a chain can be faster on the same text.
    """
    seconds, would = [0.0] * (text.length + 1), text.accepted()
    chosen: dict[int, list[int]] = {}
    for start in range(text.length - 1, 0, -1):
        context, options = text.prompt_tokens + start - 1, []
        for submitted in range(min(depth, text.cap(start)) + 1):
            kept = min(would[start], submitted)
            emitted = min(kept + 1, text.length - start)
            spent = prices.chain(submitted, context) if submitted else prices.plain(context)
            options.append((spent + seconds[start + emitted], submitted, kept, emitted))
        seconds[start], *chosen[start] = min(options, key=itemgetter(0))
    rounds, start = [], 1
    while start < text.length:
        submitted, kept, emitted = chosen[start]
        context = text.prompt_tokens + start - 1
        rounds.append(
            ReplayedRound(context=context, drafted=submitted, passes=submitted, accepted=kept, emitted=emitted)
        )
        start += emitted
    return rounds


class Clock:
    """Times decodes by a latency ``profile``."""

    def __init__(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self._prices = cache(partial(RoundPrices.at, profile))

    def plain(self, text: RecordedText) -> Decode:
        """Decode by the target alone: a round a token."""
        return self._decode(text, plain_rounds(text), 0.0, drafts=False)

    def policy(self, text: RecordedText, policy: ChainPolicy, rounds: Sequence[ReplayedRound] | None = None) -> Decode:
        """Decode by ``policy``; its ``rounds`` are taken as given, where they are known, as no clock changes them."""
        question = policy.controller.question_seconds(self._prices(text.settings).profile)
        return self._decode(text, list(replayed(text, policy)) if rounds is None else rounds, question, policy.drafts)

    def branches(self, text: RecordedText, controller: Controller, config: BranchSettings, verifier: str) -> Decode:
        """Decode by branch-parallel decoding, on the virtual clock."""
        rounds = list(replayed_branches(text, controller, config, verifier))
        prices = self._prices(text.settings)
        seconds = prices.branch_request(rounds, text.prompt_tokens)
        seconds += sum(prices.reading(one.confidences, one.entropies) for one in rounds)
        seconds += controller.question_seconds(prices.profile) * sum(one.asked for one in rounds)
        return Decode.of(text, rounds, seconds)

    def oracle(self, text: RecordedText, depth: int) -> Decode:
        """Decode by the oracle: the fastest chains of at most ``depth`` tokens, by what will be accepted."""
        return self._decode(text, clairvoyant(text, depth, self._prices(text.settings)), 0.0)

    def _decode(
        self, text: RecordedText, rounds: Sequence[ReplayedRound], question: float, drafts: bool = True
    ) -> Decode:
        prices = self._prices(text.settings)
        return Decode.of(text, rounds, prices.prefill(text.prompt_tokens, drafts) + prices.rounds(rounds, question))
