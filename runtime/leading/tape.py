"""A planned decode as a tape: every choice of a decoder in order of its queries, read back by a source of chance.

A tape holds for one decoder, text and device. What a decoder queries otherwise than planned is refused: numbers differ between
devices, and a controller may read a clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from runtime.decoding.base import Generation
from runtime.randomness import Chance, Randomness

REMEDY = "Numbers or decisions differ from those planned: plan the tape again, by this decoder on this device."


class OffTapeError(RuntimeError):
    """The decoder asks for something that its tape does not hold."""


@dataclass(frozen=True)
class LedRound:
    """The tokens ``drafted`` in a round, how many of them are ``accepted``, and the ``token`` after those. For every draw also a
    uniform number that `runtime.randomness.inverted` makes it of: ``draft_uniforms`` (0 for a token of a lookup, which is not
    drawn), and those of the verdict."""

    drafted: tuple[int, ...]
    accepted: int
    token: int
    draft_uniforms: tuple[float, ...] = ()
    verdict_uniforms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Tape:
    """A planned decode that emits ``tokens``, and its ``rounds`` after the prefill: ``None`` where none is led."""

    tokens: tuple[int, ...]
    seed: int
    rounds: tuple[LedRound, ...] | None
    first_uniform: float = 0.0

    def chance(self, recorded: bool = False) -> "TapeChance | Randomness":
        """What to pass as a decode's ``randomness``; every decode takes its own.

        Every draw is also made as a seeded one, and its cost with it. ``recorded``: hand out the uniform numbers of the draws, so
        that draws and verdicts run as recorded programs where the models' passes do; check `followed` then.
        """
        if self.rounds is None:
            return Randomness(self.seed)
        return TapeChance(self, self.rounds, NumberedStream if recorded else TapeStream)

    def followed(self, generation: Generation) -> bool:
        """Whether ``generation`` is the decode that was planned: its tokens, and in every round what was drafted and accepted."""
        if tuple(generation.tokens) != self.tokens:
            return False
        done = [(record.drafted, record.accepted) for record in generation.rounds[1:]]
        return self.rounds is None or done == [(len(one.drafted), one.accepted) for one in self.rounds]


class TapeChance:
    """`Chance` of one decode: a stream of the tape for each purpose. Drafts and verdicts must come in the rounds planned."""

    def __init__(self, tape: Tape, rounds: Sequence[LedRound], kind: "type[TapeStream]") -> None:
        self._ends = list(accumulate(len(one.drafted) for one in rounds))
        tokens = [token for one in rounds for token in one.drafted]
        verdicts = [tape.tokens[0], *(answer for one in rounds for answer in (one.accepted, one.token))]
        numbers = [tape.first_uniform, *(number for one in rounds for number in one.verdict_uniforms)]
        draft_numbers = [number for one in rounds for number in one.draft_uniforms]
        self._draft = kind(tokens, draft_numbers, tape.seed, partial(self._require_planned, True))
        self._verify = kind(verdicts, numbers, tape.seed, partial(self._require_planned, False))

    def stream(self, purpose: str) -> Chance:
        """The stream of one purpose."""
        streams = {"draft": self._draft, "verify": self._verify}
        if purpose not in streams:
            raise OffTapeError(
                f"a tape holds draws for draft and verify, not for {purpose!r}: this loop cannot be led."
            )
        return streams[purpose]

    def _require_planned(self, drafts: bool) -> None:
        """`OffTapeError` unless the next draw is of the round in flight: a draft before its last token, a verdict after it."""
        number = (self._verify.taken - 1) // 2  # the prefill takes one verdict, every round two
        if number >= len(self._ends):
            raise OffTapeError(f"the decoder begins round {number + 1}, and {len(self._ends)} were planned. {REMEDY}")
        taken, planned = self._draft.taken, self._ends[number] if number >= 0 else 0
        doing = f"drafts token {taken + 1}" if drafts else f"verifies after {taken} drafted tokens"
        if (taken >= planned) if drafts else (taken != planned):
            raise OffTapeError(f"the decoder {doing}, and {planned} were planned up to this round. {REMEDY}")


class TapeStream:
    """`Chance` that gives ``answers`` in order; ``check`` raises where they are not meant."""

    def __init__(self, answers: Sequence[int], numbers: Sequence[float], seed: int, check: Callable[[], None]) -> None:
        self.taken = 0
        self._planned = answers
        self._answers = torch.tensor(answers, dtype=torch.int64)
        self._numbers = torch.tensor(numbers, dtype=torch.float64)
        self._paid = Randomness(seed)
        self._check = check

    def categorical(self, weights: Tensor) -> Tensor:
        """The next answer, after a seeded draw from ``weights``."""
        self._check()
        self._paid.categorical(weights)
        self._answers = self._answers.to(weights.device)  # once
        self.taken += 1
        return self._answers[self.taken - 1]

    def note(self, tokens: Sequence[int]) -> None:
        """Tokens that come without a draw: they must be the next answers."""
        for token in tokens:
            self._check()
            if self._planned[self.taken] != token:
                raise OffTapeError(
                    f"a lookup drafts token {token}, and {self._planned[self.taken]} was planned. {REMEDY}"
                )
            self.taken += 1


class NumberedStream(TapeStream):
    """`Uniform`: also gives the numbers that make the answers of the weights planned with."""

    def fill(self, uniform: Tensor) -> None:
        """Fill ``uniform`` [..., 1] with the next draw's number."""
        self._check()
        self._numbers = self._numbers.to(uniform.device)
        uniform.copy_(self._numbers[self.taken])
        self.taken += 1


def number_of(weights_V: Tensor, answer: int) -> float:
    """The middle of the uniform numbers that `inverted` makes ``answer`` of."""
    cumulative_V = weights_V.double().cumsum(dim=-1)
    return float((cumulative_V[answer] - weights_V[answer].double() / 2) / cumulative_V[-1])
