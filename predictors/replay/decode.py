"""Whole decodes on recorded texts: which policy would have taken how long.

All policies read one text with the same chance: whether a drafted token is kept at a row follows from the row's own uniform
number, whoever drafts there. So policies are compared on the same luck, and their differences are those of decisions. Rounds of
one decode share no row, so that their numbers are independent.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from predictors.branch_settings import BranchSettings
from predictors.controllers.base import Controller
from predictors.latency.branching import BranchCosts
from predictors.latency.profile import LatencyProfile
from predictors.replay.acceptance import accepted, reached
from predictors.replay.branches import replayed_branches
from predictors.replay.chains import Accepted, ChainPolicy, replayed
from predictors.replay.prices import Prices
from predictors.replay.text import RecordedText
from predictors.rounds import ReplayedRound

COUNTS = ("submitted", "passes", "accepted", "asked", "looked_up")  # of rounds


@dataclass(frozen=True)
class Decode:
    """One text decoded: new ``tokens`` in ``seconds``, and sums over its ``rounds`` behind the prefill."""

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
        """The sums over ``rounds``."""
        counts = {name: sum(getattr(one, name) for one in rounds) for name in COUNTS}
        return Decode(text.length, seconds, len(rounds), **counts)


@dataclass(frozen=True)
class Reading:
    """A text with its luck: uniform numbers in [0, 1) by row, for the tokens of chains and for candidates tried there.

    With the numbers of `runtime.leading.leader` at ``KEEP``, chains accept what a decode led along this text accepts.
    """

    text: RecordedText
    uniforms: np.ndarray
    tried: np.ndarray

    @staticmethod
    def of(text: RecordedText, seed: int) -> "Reading":
        """With uniform numbers that follow from ``seed`` and the prompt."""
        return Reading(text, *luck(text.prompt_id, text.length, seed))

    def accepted(self, verifier: str) -> Sequence[int]:
        """By row: the drafted tokens that ``verifier`` would accept of any number."""
        return self.after_lookup(verifier, 0)

    def after_lookup(self, verifier: str, looked_up: int) -> Sequence[int]:
        """By row: of ``looked_up`` tokens of the lookup and any number drawn after them, those that ``verifier`` would accept."""
        if (verifier, looked_up) not in self._accepted:
            counts_N = accepted(reached_after(self.text, verifier, looked_up), _onward(self.uniforms[1:]))
            self._accepted[verifier, looked_up] = [0, *counts_N.tolist()]
        return self._accepted[verifier, looked_up]

    def rounds(self, policy: ChainPolicy) -> Iterator[ReplayedRound]:
        """The rounds after the prefill under ``policy``."""
        if policy.lookup is not None:
            self.text.require_lookup(policy.lookup)
        return replayed(self.text, policy, lambda row, looked_up: self.after_lookup(policy.verifier, looked_up)[row])

    def branch_rounds(self, controller: Controller, config: BranchSettings, verifier: str) -> Iterator[ReplayedRound]:
        """The same of branch-parallel decoding whose blocks ``verifier`` verifies."""
        would = self.accepted(verifier).__getitem__
        return replayed_branches(self.text, controller, config, would, lambda row, p: bool(self.tried[row] < p))

    @cached_property
    def _accepted(self) -> dict[tuple[str, int], Sequence[int]]:
        return {}


def reached_after(text: RecordedText, verifier: str, looked_up: int) -> np.ndarray:
    """P(N >= n | text) for n = 1, 2, … [N, G] from every row, where ``looked_up`` tokens of the lookup go before drawn ones."""
    ratio_NG, probability_NG = (_onward(text.columns[name]) for name in ("ratio", "probability"))
    if looked_up:
        ratio_NL, right_NL = _one_hot(text, looked_up)
        ratio_NG = np.hstack([ratio_NL, ratio_NG[:, looked_up:]])
        probability_NG = np.hstack([right_NL, probability_NG[:, looked_up:]])
    return reached(ratio_NG, probability_NG, verifier)


def _one_hot(text: RecordedText, looked_up: int) -> tuple[np.ndarray, np.ndarray]:
    """Ratios and probabilities [N, L] of the text's tokens under distributions that are one-hot at the lookup's."""
    of_text_NL = _onward(text.columns["token"], -2)[:, :looked_up]
    right_NL = of_text_NL == text.columns["lookup"][:, : of_text_NL.shape[1]]
    target_NL = _onward(text.columns["target_probability"], 1)[:, :looked_up].astype(np.float64)
    return right_NL / target_NL, right_NL.astype(np.float64)


def _onward(values_N: np.ndarray, then: int = 0) -> np.ndarray:
    """Values from every row on [N, N], ``then`` after a text's end, where nothing is accepted."""
    ends_N = np.full(len(values_N) - 1, then, values_N.dtype)
    return np.lib.stride_tricks.sliding_window_view(np.append(values_N, ends_N), len(values_N))


def luck(prompt_id: str, length: int, seed: int) -> np.ndarray:
    """Uniform numbers [2, length] by row of a text, for the tokens of chains and for candidates tried there."""
    return np.random.default_rng([seed, zlib.crc32(prompt_id.encode())]).random((2, length))


def plain_rounds(text: RecordedText) -> list[ReplayedRound]:
    """The target alone: a round a token."""
    return [ReplayedRound(context=text.prompt_tokens + row, emitted=1) for row in range(text.length - 1)]


def clairvoyant(text: RecordedText, depth: int, accepted: Accepted, prices: Prices) -> list[ReplayedRound]:
    """The rounds of the oracle for chains of at most ``depth`` tokens: it knows what will be accepted and, over the whole text,
    drafts what takes least time.

        best(s) = min_{m <= cap(s)} round(m) + best(s + min(N(s), m) + 1)           best(end) = 0

    N(s) is what the verifier would accept from row s. No rule that decides when to stop a chain can be faster on the same text.
    """
    seconds = [0.0] * (text.length + 1)
    chosen: dict[int, list[int]] = {}
    for start in range(text.length - 1, 0, -1):
        context, options = text.prompt_tokens + start - 1, []
        for submitted in range(min(depth, text.cap(start)) + 1):
            kept = min(accepted(start), submitted)
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
        self._prices = {sampled: Prices(profile, sampled) for sampled in (False, True)}

    def plain(self, text: RecordedText) -> Decode:
        """The target alone: a round a token."""
        return self._decode(text, plain_rounds(text), 0.0, drafts=False)

    def policy(self, reading: Reading, policy: ChainPolicy, rounds: Sequence[ReplayedRound] | None = None) -> Decode:
        """What ``policy`` makes of the text: its ``rounds``, where they are known, as no clock changes them."""
        text, prices = reading.text, self._prices[not reading.text.settings.greedy]
        question = policy.controller.question_seconds(prices.profile)
        return self._decode(text, list(reading.rounds(policy)) if rounds is None else rounds, question, policy.drafts)

    def branches(self, reading: Reading, controller: Controller, config: BranchSettings, verifier: str) -> Decode:
        """What branch-parallel decoding makes of the text, on the virtual clock."""
        text, sampled = reading.text, not reading.text.settings.greedy
        rounds, prices = list(reading.branch_rounds(controller, config, verifier)), self._prices[sampled]
        seconds = BranchCosts(prices.profile, sampled).request(rounds, text.prompt_tokens)
        seconds += sum(prices.reading(one.confidences, one.entropies) for one in rounds)
        seconds += controller.question_seconds(prices.profile) * sum(one.asked for one in rounds)
        return Decode.of(text, rounds, seconds)

    def oracle(self, reading: Reading, depth: int, verifier: str = "block") -> Decode:
        """The fastest chains of at most ``depth`` tokens, by who knows what will be accepted."""
        text, would = reading.text, reading.accepted(verifier)
        rounds = clairvoyant(text, depth, would.__getitem__, self._prices[not text.settings.greedy])
        return self._decode(text, rounds, 0.0)

    def _decode(
        self, text: RecordedText, rounds: Sequence[ReplayedRound], question: float, drafts: bool = True
    ) -> Decode:
        prices = self._prices[not text.settings.greedy]
        return Decode.of(text, rounds, prices.prefill(text.prompt_tokens, drafts) + prices.rounds(rounds, question))
