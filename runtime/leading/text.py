"""A text of the target to lead decoders along, and what models say along it, beside it and after it: computed once, however many
plans of the text ask. While a decode is planned, stand-ins that read these logits take the models' places.

Row t is the position of token y_t of the continuation, after the prompt and y_0 … y_{t-1}. Shape suffixes: R rows (T tokens and
the position after them), V vocabulary.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import Forward, LanguageModel, ModelState
from runtime.laws import processed_law
from runtime.pair import ModelPair


class Logits:
    """Those of ``model`` on a ``text``. ``beside_V``: those [V] that were asked for, by the row where they left the text and the
    tokens since. Mostly plans leave it alike."""

    def __init__(self, model: LanguageModel, text: "GivenText") -> None:
        self.model, self.prompt, self.tokens = model, text.prompt, text.tokens
        self.beside_V: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._max_length = len(text.prompt) + text.max_new_tokens
        self._state: ModelState | None = None
        self._committed = 0
        self._beside: list[int] = []

    @cached_property
    @torch.inference_mode()
    def along_RV(self) -> Tensor:
        """Of every row, by one pass."""
        state = self.model.open(len(self.prompt) + len(self.tokens))
        return state.forward([*self.prompt, *self.tokens], last=len(self.tokens) + 1).logits

    def after(self, tokens: Sequence[int]) -> Tensor:
        """[V] after the prompt and ``tokens``."""
        both = enumerate(zip(self.tokens, tokens, strict=False))
        row = next((row for row, (own, other) in both if own != other), min(len(self.tokens), len(tokens)))
        if row == len(tokens):
            return self.along_RV[row]
        place = row, tuple(tokens[row:])
        if place not in self.beside_V:
            self.beside_V[place] = self._computed(row, tokens[row:])
        return self.beside_V[place]

    @torch.inference_mode()
    def _computed(self, row: int, tokens: Sequence[int]) -> Tensor:
        state = self._at(len(self.prompt) + row)
        if self._beside != list(tokens[: len(self._beside)]) or len(self._beside) == len(tokens):
            self._drop(state)
        new = tokens[len(self._beside) :]
        self._beside += new
        return state.forward(new, last=1).logits[-1]

    def _at(self, length: int) -> ModelState:
        """A state that holds the first ``length`` tokens of prompt and text."""
        if self._state is None or length < self._committed:  # another plan begins
            self._state = self.model.open(self._max_length)
            self._committed, self._beside = 0, []
        if length > self._committed:
            self._drop(self._state)
            new = [*self.prompt, *self.tokens][self._committed : length]
            self._state.forward(new, last=1)
            self._state.keep(range(len(new)))
            self._committed = length
        return self._state

    def _drop(self, state: ModelState) -> None:
        """Forget the tokens beside the text."""
        state.keep([])
        self._beside = []


@dataclass(frozen=True, eq=False)
class GivenText:
    """``tokens`` that ``target`` continued ``prompt`` with under ``settings``, within ``max_new_tokens``: they fill the budget,
    or end with the first of ``eos_tokens``. ``known``: the logits that plans have asked models for, by the model's id."""

    target: LanguageModel
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    settings: SamplingSettings
    max_new_tokens: int
    eos_tokens: frozenset[int]
    known: dict[int, Logits] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        pair: ModelPair,
        prompt: Sequence[int],
        tokens: Sequence[int],
        settings: SamplingSettings,
        max_new_tokens: int,
        eos_tokens: Collection[int] | None = None,
    ) -> "GivenText":
        """The text ``tokens``, whose probabilities one pass of the target gives.

        Parameters
        ----------
        prompt, tokens
            Token ids; of both at least one.
        max_new_tokens
            The budget that they were decoded with.
        eos_tokens
            Tokens that end the generation; by default the target's own.

        Raises
        ------
        ValueError
            If the target cannot have continued like this.
        """
        ends = frozenset(pair.target.eos_tokens if eos_tokens is None else eos_tokens)
        _require_whole(tokens, max_new_tokens, ends)
        text = cls(pair.target, tuple(prompt), tuple(tokens), settings, max_new_tokens, ends)
        if not settings.greedy:
            _require_possible(tokens, text.probs_RV)
        return text

    @cached_property
    def probs_RV(self) -> Tensor:
        """The target's probabilities before each token, and after the last."""
        return processed_law(self.logits(self.target).along_RV, self.settings)

    def logits(self, model: LanguageModel) -> Logits:
        """What ``model``, the target or a draft, says of this text: all plans of it share what one has asked for."""
        if id(model) not in self.known:
            self.known[id(model)] = Logits(model, self)
        return self.known[id(model)]

    @property
    def options(self) -> dict[str, Any]:
        """What `Decoder.generate` is given beside prompt and randomness."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "eos_token_id": sorted(self.eos_tokens),
            **dataclasses.asdict(self.settings),
        }


def _require_whole(tokens: Sequence[int], budget: int, eos_tokens: Collection[int]) -> None:
    """`ValueError` unless a generation of at most ``budget`` tokens may end with ``tokens``."""
    ended = [place for place, token in enumerate(tokens) if token in eos_tokens]
    if ended and ended[0] < len(tokens) - 1:
        raise ValueError(
            f"the text goes on after token {tokens[ended[0]]} at position {ended[0]}, which ends a generation. Cut it there."
        )
    if not tokens or (len(tokens) < budget and not ended) or len(tokens) > budget:
        raise ValueError(
            f"a text of {len(tokens)} tokens neither fills its budget of {budget} nor ends with one of {sorted(eos_tokens)}. "
            "Pass the max_new_tokens and eos_tokens that it was decoded with."
        )


def _require_possible(tokens: Sequence[int], probs_RV: Tensor) -> None:
    """`ValueError` if the target gives one of ``tokens`` no probability."""
    chosen = torch.tensor(tokens, device=probs_RV.device).unsqueeze(1)
    likely: list[float] = probs_RV[:-1].gather(1, chosen).squeeze(1).tolist()
    for row, (token, probability) in enumerate(zip(tokens, likely, strict=True)):
        if not probability > 0:
            raise ValueError(
                f"token {token} at position {row} of the text has probability {probability} under the target. Record the text "
                "with the same weights, number format and sampling settings."
            )


@dataclass(frozen=True, eq=False)
class StandIn:
    """A `LanguageModel` that says what is known of a text, and everything else of itself as the model does. ``silent``: it has
    nothing to say beside the text, where the target's verdict follows from the text alone."""

    known: Logits
    silent: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.known.model, name)

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "StandInState":
        """As of any model, without taps."""
        assert not layers, "nothing is known of hidden states"
        return StandInState(self.known, self.silent)


class StandInState:
    """`ModelState` of chains."""

    def __init__(self, known: Logits, silent: bool) -> None:
        self._known, self._silent = known, silent
        self._committed: list[int] = []
        self._scratch: list[int] = []

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        """Rows of the ``last`` of ``tokens``, which follow one another."""
        new = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        self._scratch += new
        context = [*self._committed, *self._scratch]
        asked = len(new) if last is None else last
        rows = [
            self._row(context[len(self._known.prompt) : end])
            for end in range(len(context) + 1 - asked, len(context) + 1)
        ]
        return Forward(torch.stack(rows))

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        kept = [self._scratch[node] for node in path]
        self._committed += kept[: len(kept) - pending]
        self._scratch = kept[len(kept) - pending :]

    def _row(self, tokens: list[int]) -> Tensor:
        text = self._known.tokens
        if self._silent and tokens != list(text[: len(tokens)]):
            return torch.zeros_like(self._known.along_RV[0])
        return self._known.after(tokens)
