"""Models whose passes take no time, so that what a decoder does between passes can be timed alone.

A pass hands out the next rows of prepared random logits, as large, of the dtype and on the device of the real model's:

    target logits = z + ε,   draft logits = z + ε'        z ~ N(0, 1) per token, ε, ε' ~ N(0, 1/4) per row and token

Laws are flat enough for rollouts of a tree to part at once, and close enough to be accepted and rejected in turn (what a verdict
costs was seen not to depend on that: within 1 % from noise 0 to 2).
"""

import sys
from collections.abc import Sequence
from copy import copy
from time import perf_counter

import torch
from torch import Tensor

from runtime.adapter import Forward, LanguageModel, features_of
from runtime.graphs import Programs
from runtime.latency.cells import synchronise
from runtime.latency.passes import offer
from runtime.pair import ModelPair

NOISE = 0.5


class WeightlessModel:
    """A `LanguageModel` that hands out the rows of ``logits_RV``, over and over; work over them is graphed in ``programs``.

    ``stamps``, if it is a list, gets when each pass ends, the device waited for. A request's state is a copy of the model, which
    is a place in the rows: nothing is cached, so nothing is dropped.
    """

    context_limit = sys.maxsize
    eos_tokens: frozenset[int] = frozenset()

    def __init__(self, logits_RV: Tensor, programs: Programs | None = None, stamps: list[float] | None = None) -> None:
        self.logits_RV = logits_RV
        self.programs = programs
        self.stamps = stamps
        self.device, self.dtype = logits_RV.device, logits_RV.dtype
        self.vocabulary_size: int = logits_RV.shape[1]
        self._next = 0

    def open(self, max_length: int, layers: tuple[int, ...] = ()) -> "WeightlessModel":
        state = copy(self)
        state._next = 0
        return state

    def embedding(self, token: int) -> Tensor:
        return self.logits_RV.new_zeros(1)

    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        count = last or len(tokens)
        assert count <= len(self.logits_RV), f"a pass asks for {count} rows of {len(self.logits_RV)} prepared"
        first = self._next if self._next + count <= len(self.logits_RV) else 0
        self._next = first + count
        if self.stamps is not None:
            synchronise(self.device)
            self.stamps.append(perf_counter())
        return Forward(self.logits_RV[first : self._next])

    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        pass


def weightless_pair(pair: ModelPair, num_rows: int, generator: torch.Generator) -> ModelPair:
    """A pair over the vocabularies of ``pair`` with ``num_rows`` prepared rows each: as many as any pass asks for, or more. Its
    draft reads tokens alone: what a draft does with the target's states is timed with its passes."""
    models = (pair.target, pair.draft or pair.target)
    states = models[0].open(1, features_of(models[1])), models[1].open(1)
    said = states[0].forward([0])  # as the decoder gets it
    offer(states[1], said.hidden_NKD)
    likes = [said.logits, states[1].forward([0]).logits]
    shared_V = torch.randn(max(like.shape[-1] for like in likes), generator=generator)

    def prepared(model: LanguageModel, like: Tensor) -> WeightlessModel:
        size = like.shape[-1]
        noise_RV = NOISE * torch.randn(num_rows, size, generator=generator)
        return WeightlessModel((shared_V[:size] + noise_RV).to(like), model.programs)

    target, draft = map(prepared, models, likes)
    return ModelPair(target, draft, tokenizer=pair.tokenizer, draft_tokenizer=pair.tokenizer)
