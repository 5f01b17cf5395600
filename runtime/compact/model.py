"""The weights of the compact forward alone, as a language model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runtime.adapter import ModelState
from runtime.compact.state import CompactState, Memory
from runtime.compact.weights import CompactWeights
from runtime.scratch import SCRATCH_ROOM


@dataclass(eq=False)
class CompactModel:
    """What of a `runtime.causal_model.CausalLanguageModel` goes to another process (`Sent`): its ``weights``, which are
    ``packed`` there, as their layout is that process's own."""

    weights: CompactWeights
    packed: bool
    vocabulary_size: int
    context_limit: int
    eos_tokens: frozenset[int]

    programs = None

    def __post_init__(self) -> None:
        if self.packed:
            self.weights = self.weights.packed()

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        """As `runtime.adapter.LanguageModel.open`; whoever sent the model has looked at ``layers``."""
        return CompactState(Memory(self.weights, max_length + SCRATCH_ROOM), layers)

    def embedding(self, token: int) -> Tensor:
        return self.weights.embedding.detach()[token]


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
