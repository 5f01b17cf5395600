"""The target's probabilities where a drafted chain has left the text, or where the text has ended. Shape suffix: V vocabulary."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.laws import processed_law
from runtime.leading.text import GivenText


class Ahead:
    """A state of the target that follows the text: rows may be queried in ascending order. What one plan of a text has asked for,
    the others read: mostly they leave it in the same places for the same tokens."""

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
