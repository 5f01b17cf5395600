"""A causal language model as the decoder sees it: a committed cache plus scratch nodes.

    state.forward(tokens, parents)   append scratch nodes (parents index scratch, -1 = the committed end); logits and taps
    state.keep(path, pending)        commit a path of scratch nodes but for its last `pending` ones, and drop the rest

Prefill, a draft step, a tree and branches are all this. The newest token is never cached yet. Behind it stands the compact
forward or Hugging Face's own (`runtime.causal_model`). Shape suffixes: N nodes of a call, V vocabulary, K tapped layers, D hidden
size.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runtime.device import is_out_of_memory
from runtime.recorder import Programs

Row = tuple[Tensor, Tensor | None]  # logits [V] and tapped hidden states [K, D]


@dataclass(frozen=True)
class Forward:
    """One pass: ``logits`` [rows, V] of the last rows asked for, ``hidden_NKD`` of every node (``None`` without taps)."""

    logits: Tensor
    hidden_NKD: Tensor | None = None

    def rows(self) -> list[Row]:
        """The rows that have logits."""
        if self.hidden_NKD is None:
            return [(logits_V, None) for logits_V in self.logits]
        return list(zip(self.logits, self.hidden_NKD[-len(self.logits) :], strict=True))


class ModelState(Protocol):
    """One request's state over one model."""

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        """Append nodes and run the model over them. ``parents=None``: a chain from the newest scratch node (or the committed
        end); ``last``: logits of the last rows only."""

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        """Keep scratch nodes ``path`` (ascending, a path from the committed end) and drop the others: the last ``pending`` of
        them stay scratch, now a chain of nodes 0, 1, …; those before are committed."""


class LanguageModel(Protocol):
    """What a pair holds; `CausalLanguageModel` wraps Hugging Face models, tests fake it in twenty lines."""

    vocabulary_size: int
    context_limit: int

    @property
    def device(self) -> torch.device:
        """The one that it is on; of a model over several, where tokens go in."""

    @property
    def dtype(self) -> torch.dtype:
        """The number format of its weights."""

    @property
    def programs(self) -> Programs | None:
        """Where work over its output is recorded, if its passes are (`runtime.recorder`)."""

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Tokens that end a generation; may be empty."""

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        """A fresh state for a request of ``max_length`` tokens, tapping hidden states of ``layers``."""

    def embedding(self, token: int) -> Tensor:
        """Input embedding [E] of a token."""


def cache_prompt(state: ModelState, prompt: Sequence[int]) -> Forward:
    """Commit a prompt; its last pass, with logits of its last token. It is the widest pass of a request: where it finds no memory
    two follow, once, with a warning; their sums may round differently. `MemoryError` if a half finds none either."""
    half, parts = len(prompt) // 2, [prompt]
    while True:
        try:
            for part in parts:
                out = None  # the first half's states go before the second's come
                out = state.forward(part, last=1)
                state.keep(range(len(part)))
            assert out is not None
            return out
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if len(parts) == 2 or not half:
                raise MemoryError(
                    f"no memory for a pass over {len(parts[-1])} tokens of the prompt ({error}): shorten the prompt, free "
                    "memory, or place the models on more devices. `draftwright plan` counts what they need."
                ) from error
            text = f"no memory for {len(prompt)} tokens at once ({error}): two passes read the prompt"
            warnings.warn(text, stacklevel=2)
        state.keep(())
        parts = [prompt[:half], prompt[half:]]
