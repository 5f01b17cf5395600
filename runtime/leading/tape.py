"""A planned decode as a tape: every choice of a decoder in order of its queries. To plan, the real decoder runs once, with every
choice drawn given the text; a source of chance then reads the tape back.

A tape holds for one decoder, text and device. What a decoder queries otherwise than planned is refused: numbers differ between
devices, and a controller may read a clock.
"""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.decoding.base import Decoder, Generation
from runtime.decoding.branch_parallel import BranchParallelDecoder
from runtime.decoding.sequential import SequentialDecoder
from runtime.decoding.single_model import SingleModelDecoder
from runtime.drafting.chain import ChainConfig, LookupConfig
from runtime.leading.leader import Leader, LedChain, Luck, luck_of, seeded_uniforms
from runtime.leading.text import GivenText, StandIn
from runtime.randomness import Chance, Randomness
from runtime.verification import VERIFIERS
from runtime.verification.chain import block, tokenwise
from runtime.verification.outcome import Rule

LED_RULES: set[Rule] = {tokenwise, block}  # hsd is block
LED_LOOKUP_RULES = {*LED_RULES, VERIFIERS["match"].rule}  # on one-hot drafts it is tokenwise
REMEDY = "Numbers or decisions differ from those planned: plan the tape again, by this decoder on this device."


class OffTapeError(RuntimeError):
    """The decoder asks for something that its tape does not hold."""


@dataclass(frozen=True)
class Tape:
    """A planned decode that emits ``tokens``, and its ``rounds`` after the prefill: ``None`` where none is led."""

    tokens: tuple[int, ...]
    seed: int
    rounds: tuple[LedChain, ...] | None
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
        return self.rounds is None or done == [(len(one.tokens), one.kept) for one in self.rounds]


def plan(decoder: Decoder, text: GivenText, seed: int, tails: bool = True) -> Tape:
    """The choices of ``decoder`` along ``text``, drawn from its own distribution given the text.

    Takes the drafting of a decode, and under block verification one pass of the target for every token that is drafted after the
    first one beside the text; where passes are recorded or hidden states are read, all of a decode.

    Parameters
    ----------
    seed
        Of the uniform numbers: a text's decoders share them by position in the text (`runtime.leading.leader`).
    tails
        Draw those later tokens given the text, too. ``False`` saves the passes and shares the draft's among a text's plans. It is
        exact where no decision depends on them: for controllers that look at no draft, as long as no end-of-sequence token is
        drafted there; not for recorded chance, as a verdict may then have no number.

    Raises
    ------
    ValueError
        If the decoder cannot be led (`why_not_led`), or the text was recorded with other probabilities.
    """
    if reason := why_not_led(decoder, text.settings):
        raise ValueError(
            f"{type(decoder).__name__} cannot be led along a text: {reason}. Let it decode a text of its own."
        )
    if text.settings.greedy:
        return Tape(text.tokens, seed, rounds=None)
    tape, generation = led(decoder, text, seed, luck_of(seeded_uniforms(seed)), tails)
    assert tape.followed(generation), "every token of a led decode is the text's"
    return tape


def led(decoder: Decoder, text: GivenText, seed: int, luck: Luck, tails: bool) -> tuple[Tape, Generation]:
    """The tape that ``luck`` gives, and the decode that it was taken from."""
    chosen = decoder.route(text.settings)
    assert isinstance(chosen, SequentialDecoder), "why_not_led let it pass"
    leader = Leader(text, chosen.verifier.rule is block, luck, tails)
    generation = _over_text(chosen, text, tails).generate(list(text.prompt), randomness=leader, **text.options)
    return Tape(text.tokens, seed, tuple(leader.rounds), leader.first_uniform), generation


def _over_text(decoder: SequentialDecoder, text: GivenText, tails: bool) -> SequentialDecoder:
    """``decoder`` with stand-ins for what is known of ``text``: for the target, whose verdict follows from the text, and without
    ``tails`` for the draft, whose numbers no decision depends on then. Not for models whose hidden states are read, by
    a controller or a draft, nor where passes are recorded: verdicts have numbers there."""
    pair, reads = copy(decoder.pair), decoder.controller
    if pair.target.programs is not None or pair.target is not text.target or decoder.features:
        return decoder
    if not (reads.layers or reads.reads_views):
        pair.target = StandIn(text.logits(text.target), silent=True)
    if not (tails or pair.draft is None or reads.draft_layers or reads.reads_views):
        pair.draft = StandIn(text.logits(pair.draft), silent=False)
    made = copy(decoder)
    made.pair = pair
    return made


def why_not_led(decoder: Decoder, settings: SamplingSettings) -> str | None:
    """The reason why ``decoder`` cannot be led along a text sampled by ``settings``, ``None`` where it can be.

    At temperature 0 every lossless decoder emits the target's one text, and nothing needs leading.
    """
    decoder = decoder.route(settings)
    if settings.greedy:
        return None
    if isinstance(decoder, BranchParallelDecoder):
        return "it is branch-parallel: what it drafts concurrently with the target is not enumerated given a text yet"
    if isinstance(decoder, SingleModelDecoder):
        return "it drafts for itself: what it guesses depends on earlier passes, not on a draft model's distributions"
    if type(decoder) is not SequentialDecoder:
        return f"{type(decoder).__name__} is not a loop that leading knows"
    if decoder.drafter is None:
        return None
    rules: Collection[object] = LED_LOOKUP_RULES
    if not isinstance(decoder.drafter, LookupConfig):
        if not isinstance(decoder.drafter, ChainConfig):
            return f"its drafter {decoder.drafter} draws trees, and only chains are enumerated given a text"
        if decoder.drafter.draft_temperature == 0:
            return "its draft_temperature is 0: the model's tokens are not drawn, and cannot be led"
        rules = LED_RULES
    if decoder.verifier.rule not in rules:
        return f"verifier {decoder.verifier.name!r} is not enumerated given a text; tokenwise, block and hsd are"
    return None


class TapeChance:
    """`Chance` of one decode: a stream of the tape for each purpose. Drafts and verdicts must come in the rounds planned."""

    def __init__(self, tape: Tape, rounds: Sequence[LedChain], kind: "type[TapeStream]") -> None:
        self._ends = list(accumulate(len(one.tokens) for one in rounds))
        tokens = [token for one in rounds for token in one.tokens]
        verdicts = [tape.tokens[0], *(answer for one in rounds for answer in (one.kept, one.next_token))]
        numbers = [tape.first_uniform, *(number for one in rounds for number in one.verdict_uniforms)]
        draft_numbers = [number for one in rounds for number in one.uniforms]
        self._draft = kind(tokens, draft_numbers, tape.seed, partial(self._require_planned, True))
        self._verify = kind(verdicts, numbers, tape.seed, partial(self._require_planned, False))

    def stream(self, purpose: str) -> Chance:
        """The stream of one purpose, ``draft`` or ``verify``."""
        if purpose not in ("draft", "verify"):
            raise OffTapeError(f"a tape holds draws for draft and verify, not for {purpose}: this loop cannot be led.")
        return self._draft if purpose == "draft" else self._verify

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
