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


@dataclass(eq=False)
class Logits:
    """Those of ``model`` on a context of ``prompt`` and ``tokens``, of at most ``max_new_tokens``. ``beside_V``: those [V] that
    were asked for, by the row where they left the text and the tokens since. Mostly plans leave it alike."""

    model: LanguageModel
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    max_new_tokens: int
    beside_V: dict[tuple[int, tuple[int, ...]], Tensor] = field(default_factory=dict)
    _state: ModelState | None = None
    _committed: int = 0
    _beside: list[int] = field(default_factory=list)

    @cached_property
    @torch.inference_mode()
    def along_RV(self) -> Tensor:
        """Of every row, by one pass."""
        state = self.model.open(len(self.prompt) + len(self.tokens))
        return state.forward([*self.prompt, *self.tokens], last=len(self.tokens) + 1).logits

    def after(self, tokens: Sequence[int]) -> Tensor:
        """[V] after the prompt and ``tokens``."""
        row = next((row for row, pair in enumerate(zip(self.tokens, tokens, strict=False)) if pair[0] != pair[1]), None)
        row = min(len(self.tokens), len(tokens)) if row is None else row
        return self.along_RV[row] if row == len(tokens) else self.beside(row, tokens[row:])

    def beside(self, row: int, tokens: Sequence[int]) -> Tensor:
        """[V] after the text's first ``row`` tokens and then ``tokens``, at least one."""
        place = row, tuple(tokens)
        if place not in self.beside_V:
            self.beside_V[place] = self._computed(row, tokens)
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
            self._state = self.model.open(len(self.prompt) + self.max_new_tokens)
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
    or end with the first of ``eos_tokens``. ``probs_RV`` are the target's probabilities before each token, and after the last;
    ``known``: the logits that plans have asked models for."""

    target: LanguageModel
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    settings: SamplingSettings
    max_new_tokens: int
    eos_tokens: frozenset[int]
    probs_RV: Tensor
    known: list[Logits] = field(default_factory=list, repr=False)

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
        target, budget = pair.target, max_new_tokens
        ends = target.eos_tokens if eos_tokens is None else eos_tokens
        _require_whole(tokens, budget, ends)
        known = Logits(target, tuple(prompt), tuple(tokens), budget)
        probs_RV = processed_law(known.along_RV, settings)
        if not settings.greedy:
            _require_possible(tokens, probs_RV)
        return cls(target, tuple(prompt), tuple(tokens), settings, budget, frozenset(ends), probs_RV, [known])

    def logits(self, model: LanguageModel) -> Logits:
        """What ``model``, the target or a draft, says of this text: all plans of it share what one has asked for."""
        for one in self.known:
            if one.model is model:
                return one
        self.known.append(Logits(model, self.prompt, self.tokens, self.max_new_tokens))
        return self.known[-1]

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


class StandIn:
    """A `LanguageModel` that says what is known of a text, and everything else of itself as the model does. ``silent``: it has
    nothing to say beside the text, where the target's verdict follows from the text alone."""

    def __init__(self, known: Logits, silent: bool) -> None:
        self._known, self._silent = known, silent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known.model, name)

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "StandInState":
        """As of any model, without taps."""
        assert not layers, "nothing is known of hidden states"
        return StandInState(self._known, self._silent)


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
