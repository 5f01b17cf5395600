"""A text of the target to lead decoders along, with the target's distributions at all its positions, and beside and after it.

Row t is the position of token y_t of the continuation, after the prompt and y_0 … y_{t-1}. Shape suffixes: R rows (T tokens and
the position after them), V vocabulary.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings
from runtime.adapter import LanguageModel
from runtime.laws import processed_law
from runtime.pair import ModelPair


@dataclass(frozen=True, eq=False)
class GivenText:
    """``tokens`` that ``target`` continued ``prompt`` with under ``settings``, within ``max_new_tokens``: they fill the budget,
    or end with the first of ``eos_tokens``. ``probs_RV`` are the target's probabilities before each token, and after the last;
    ``beside``: those [V] that plans have asked for, by the row where they left the text and the tokens since."""

    target: LanguageModel
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    settings: SamplingSettings
    max_new_tokens: int
    eos_tokens: frozenset[int]
    probs_RV: Tensor
    beside: dict[tuple[int, tuple[int, ...]], Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        model: ModelPair | LanguageModel,
        prompt: Sequence[int],
        tokens: Sequence[int],
        settings: SamplingSettings,
        max_new_tokens: int | None = None,
        eos_tokens: Collection[int] | None = None,
    ) -> "GivenText":
        """The text ``tokens``, whose probabilities one pass of the target gives.

        Parameters
        ----------
        model
            The target, or a pair that has it.
        prompt, tokens
            Token ids; of both at least one.
        settings
            How the tokens were sampled.
        max_new_tokens
            The budget that they were decoded with; by default their number.
        eos_tokens
            Tokens that end the generation; by default the target's own.

        Raises
        ------
        ValueError
            If the target cannot have continued like this.
        """
        target = model.target if isinstance(model, ModelPair) else model
        budget = len(tokens) if max_new_tokens is None else max_new_tokens
        ends = target.eos_tokens if eos_tokens is None else eos_tokens
        _require_whole(tokens, budget, ends)
        probs_RV = _probabilities(target, prompt, tokens, settings)
        if not settings.greedy:
            _require_possible(tokens, probs_RV)
        return cls(target, tuple(prompt), tuple(tokens), settings, budget, frozenset(ends), probs_RV)

    @property
    def options(self) -> dict[str, Any]:
        """What `Decoder.generate` is given beside prompt and randomness."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "eos_token_id": sorted(self.eos_tokens),
            **dataclasses.asdict(self.settings),
        }


class Ahead:
    """The target's probabilities where a drafted chain has left the text, or where the text has ended: a state of the target that
    follows the text, so rows may be queried in ascending order. What one plan of a text has asked for, the others read: mostly
    they leave it in the same places for the same tokens."""

    def __init__(self, text: GivenText) -> None:
        self._text = text
        self._context = [*text.prompt, *text.tokens]
        self._state = text.target.open(len(text.prompt) + text.max_new_tokens)
        self._committed = 0
        self._beside: list[int] = []

    def probs(self, row: int, beside: Sequence[int]) -> Tensor:
        """p(. | prompt, y_<row, beside) [V]; ``beside`` holds at least one token."""
        known, place = self._text.beside, (row, tuple(beside))
        if place not in known:
            known[place] = self._probs(row, beside)
        return known[place]

    @torch.inference_mode()
    def _probs(self, row: int, beside: Sequence[int]) -> Tensor:
        self._commit(len(self._text.prompt) + row)
        if self._beside != list(beside[: len(self._beside)]) or len(self._beside) == len(beside):
            self._drop()
        new = beside[len(self._beside) :]
        self._beside += new
        return processed_law(self._state.forward(new, last=1).logits[-1], self._text.settings)

    def _commit(self, length: int) -> None:
        """Cache the first ``length`` tokens of prompt and text."""
        if length == self._committed:
            return
        assert length > self._committed, "rows are queried in ascending order"
        self._drop()
        new = self._context[self._committed : length]
        self._state.forward(new, last=1)
        self._state.keep(range(len(new)))
        self._committed = length

    def _drop(self) -> None:
        """Forget the tokens beside the text."""
        self._state.keep([])
        self._beside = []


@torch.inference_mode()
def _probabilities(
    target: LanguageModel, prompt: Sequence[int], tokens: Sequence[int], settings: SamplingSettings
) -> Tensor:
    state = target.open(len(prompt) + len(tokens))
    logits_RV = state.forward([*prompt, *tokens], last=len(tokens) + 1).logits
    return processed_law(logits_RV, settings)


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
