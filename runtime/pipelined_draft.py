"""The draft of a target that is split over two devices: a copy of it on each, working where the target is not.

A split target's pass runs over its first half on one device, then over its second half on the other. So the draft's first
``steps`` passes of a stage run on the second device, and the others on the first, as the target moves on the other way. What they
cached goes along. Which device computes a pass changes no law. Source: specification of drafting, section 3.7 (PP).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runtime.adapter import Forward, ModelState
from runtime.causal_model import CausalLanguageModel
from runtime.compact.state import CompactState
from runtime.recorder import Programs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PipelinedDraft:
    """A `LanguageModel` of two ``copies`` of one model.

    Parameters
    ----------
    copies
        The same model on the device of the target's first half, and on that of its second half.
    steps
        Passes of a stage on the second device, before the first one takes over: half the tokens of a branch, rounded up.

    Raises
    ------
    ValueError
        If the copies differ, or ``steps`` is not positive.
    """

    def __init__(self, copies: "tuple[PreTrainedModel, PreTrainedModel]", steps: int) -> None:
        first, second = copies
        if first.config.to_dict() != second.config.to_dict() or first.dtype != second.dtype:
            raise ValueError(
                "the copies of a pipelined draft must be one model: their configurations or dtypes differ."
            )
        if steps < 1:
            raise ValueError(f"steps must be >= 1, got {steps}: give half the tokens of a branch, rounded up.")
        self._models = tuple(CausalLanguageModel(model, "compact") for model in copies)
        self.steps = steps
        self.vocabulary_size = self._models[0].vocabulary_size
        self.context_limit = self._models[0].context_limit
        self.device, self.dtype = self._models[1].device, self._models[1].dtype
        self.programs: Programs | None = None

    @property
    def eos_tokens(self) -> frozenset[int]:
        return self._models[0].eos_tokens

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        first, second = (model.open(max_length, layers) for model in self._models)
        return PipelinedState((first, second), self.steps, self.device)

    def embedding(self, token: int) -> Tensor:
        return self._models[1].embedding(token)


class PipelinedState:
    """One request's state: both copies' rows, of which the one that works has all."""

    def __init__(self, states: tuple[ModelState, ModelState], steps: int, device: torch.device) -> None:
        first, second = states
        assert isinstance(first, CompactState) and isinstance(second, CompactState)
        self._first, self._second, self._active = first, second, second
        self._steps = steps
        self._device = device
        self._passes = 0  # since the last commit
        self._shared = 0  # leading rows that both hold

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        self._work_on(self._second if self._passes < self._steps else self._first)
        self._passes += 1
        out = self._active.forward(tokens, parents, last)
        hidden_NKD = None if out.hidden_NKD is None else out.hidden_NKD.to(self._device, non_blocking=True)
        return Forward(out.logits.to(self._device, non_blocking=True), hidden_NKD)

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        stay = next((place for place, node in enumerate(path) if node != place), len(path))
        self._shared = min(self._shared, self._active.committed + stay)
        self._active.keep(path, pending)
        self._passes = 0

    def _work_on(self, state: CompactState) -> None:
        if state is not self._active:
            state.go_on_from(self._active, self._shared)
            self._shared = self._active.total
            self._active = state
