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
    """A `LanguageModel` of two ``copies`` of one model, on the devices of the target's first and second half.

    ``steps``: passes of a stage on the second device, before the first one takes over: half the tokens of a branch, rounded up.
    """

    programs: Programs | None = None

    def __init__(self, copies: "tuple[PreTrainedModel, PreTrainedModel]", steps: int) -> None:
        first, second = copies
        if first.config.to_dict() != second.config.to_dict() or first.dtype != second.dtype:
            raise ValueError(
                "the copies of a pipelined draft must be one model: their configurations or dtypes differ."
            )
        if steps < 1:
            raise ValueError(f"steps must be >= 1, got {steps}: give half the tokens of a branch, rounded up.")
        self._first, self._second = (CausalLanguageModel(model, "compact") for model in copies)
        self._steps = steps
        self.vocabulary_size, self.context_limit = self._second.vocabulary_size, self._second.context_limit
        self.device, self.dtype = self._second.device, self._second.dtype
        self.eos_tokens, self.embedding = self._second.eos_tokens, self._second.embedding

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> ModelState:
        first, second = self._first.open(max_length, layers), self._second.open(max_length, layers)
        assert isinstance(first, CompactState) and isinstance(second, CompactState)
        return PipelinedState(first, second, self._steps)


class PipelinedState:
    """One request's state: both copies' rows, of which the one that works has all; the nodes are one for both."""

    def __init__(self, first: CompactState, second: CompactState, steps: int) -> None:
        self._first, self._second, self._active = first, second, second
        first.scratch = second.scratch
        self._steps = steps
        self._passes = 0  # since the last commit
        self._shared = 0  # leading rows that both hold

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        self._work_on(self._second if self._passes < self._steps else self._first)
        self._passes += 1
        out, device = self._active.forward(tokens, parents, last), self._second.memory.rows.device
        hidden_NKD = None if out.hidden_NKD is None else out.hidden_NKD.to(device, non_blocking=True)
        return Forward(out.logits.to(device, non_blocking=True), hidden_NKD)

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        stay = next((place for place, node in enumerate(path) if node != place), len(path))
        self._shared = min(self._shared, self._active.scratch.committed + stay)
        self._active.keep(path, pending)
        self._passes = 0

    def _work_on(self, state: CompactState) -> None:
        if state is not self._active:
            state.memory.copy_rows(self._active.memory, self._shared, state.scratch.total)
            self._shared = state.scratch.total
            self._active = state
