"""The weights of the compact forward alone, as a language model."""

from typing import Any

import torch
from torch import Tensor

from runtime.adapter import ModelState
from runtime.compact.memory import Memory
from runtime.compact.state import CompactState
from runtime.compact.weights import CompactWeights
from runtime.scratch import SCRATCH_ROOM


class CompactModel:
    """What of a `runtime.causal_model.CausalLanguageModel` goes to another process (`Sent`).

    ``packed`` weights are packed there, as their layout is that process's own.
    """

    programs = None

    def __init__(
        self,
        weights: CompactWeights,
        packed: bool,
        vocabulary_size: int,
        context_limit: int,
        eos_tokens: frozenset[int],
    ) -> None:
        self._weights = weights.packed(None) if packed else weights
        self.vocabulary_size = vocabulary_size
        self.context_limit = context_limit
        self.eos_tokens = eos_tokens

    @property
    def device(self) -> torch.device:
        return self._weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.embedding.dtype

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        """As `runtime.adapter.LanguageModel.open`; whoever sent the model has looked at ``layers``."""
        return CompactState(Memory(self._weights, max_length + SCRATCH_ROOM), layers)

    def embedding(self, token: int) -> Tensor:
        return self._weights.embedding.detach()[token]


class Sent:
    """``model`` on its way to another process. There it is a `CompactModel` if it can be: of Hugging Face's library, the import
    alone takes twice as long as torch's."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        """Raises as ``model.compact_parts``, where it has them."""
        parts = getattr(self._model, "compact_parts", lambda: None)()
        return (_same, (self._model,)) if parts is None else (CompactModel, parts)


def _same(model: Any) -> Any:
    return model
