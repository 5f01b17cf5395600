"""`ModelState` over the compact forward: one preallocated cache for all layers, committed rows first, then scratch rows."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from runtime.adapter import Forward, Scratch
from runtime.compact.forward import LayerCache, Lost, Pass, forward, signed
from runtime.compact.weights import CompactWeights
from runtime.device import on_device


class Memory:
    """Cache memory of one request, ``capacity`` rows: ``caches`` of the layers, keys and values [1, K, capacity, D]; ``cos`` and
    signed ``sin`` [capacity, D] of the positions; ``rows`` [capacity] counts them. ``clean``: unwritten rows hold zeros."""

    def __init__(self, weights: CompactWeights, capacity: int, clean: bool = False) -> None:
        self.weights = weights
        self._clean = clean
        self._make = weights.embedding.new_zeros if clean else weights.embedding.new_empty
        self._reserve(capacity)

    @property
    def capacity(self) -> int:
        return len(self.rows)

    @property
    def tensors(self) -> list[Tensor]:
        """Keys and values of all layers, one after the other."""
        return [*chain.from_iterable(self.caches)]

    def clear(self) -> None:
        """Fill the memory with zeros: what an earlier request left need not be finite."""
        for cache in self.tensors:
            cache.zero_()
        self.lost.rows_T.zero_()

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` rows: what is cached moves to other memory."""
        held, lost = self.tensors, self.lost
        self._reserve(capacity)
        self.lost.some |= lost.some
        self.lost.rows_T[: len(lost.rows_T)] = lost.rows_T
        for new, old in zip(self.tensors, held, strict=True):
            new[:, :, : old.shape[2]] = old

    def _reserve(self, capacity: int) -> None:
        weights = self.weights
        self.rows = torch.arange(capacity, device=weights.embedding.device)
        self.cos, sin = weights.rotary.table(self.rows, weights.embedding.dtype)
        self.sin = signed(sin)
        self.lost = Lost(self.rows, self._clean)
        shape = (1, weights.key_heads, capacity, weights.head_dim)
        self.caches: list[LayerCache] = [(self._make(shape), self._make(shape)) for _ in weights.layers]


class CompactState:
    """One request's state over a `Memory`, whose rows double where they do not suffice."""

    def __init__(self, memory: Memory, layers: tuple[int, ...]) -> None:
        self.memory = memory
        self._layers = layers
        self.scratch = Scratch()

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids = on_device(tokens, self.memory.rows.device)
        self._append(len(ids), parents)
        return self._forward(ids, last or len(ids))

    def _append(self, count: int, parents: Sequence[int] | None) -> None:
        self.scratch.append(count, parents)
        if self.scratch.total > self.memory.capacity:
            self._grow(max(self.scratch.total, 2 * self.memory.capacity))

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        if list(path) != list(range(len(path))):
            first, device = self.scratch.committed, self.memory.rows.device
            rows = on_device([first + node for node in path], device)
            for cache in self.memory.tensors:
                cache[:, :, first : first + len(path)] = cache[:, :, rows]
            lost = self.memory.lost.rows_T
            lost[first : first + len(path)] = lost[rows]
        self.scratch.keep(path, pending)

    def _grow(self, capacity: int) -> None:
        self.memory.grow(capacity)

    def _forward(self, ids_N: Tensor, last: int) -> Forward:
        return said(*forward(self.memory.weights, self._pass(ids_N), self.memory.caches, last, self._layers))

    def _pass(self, ids_N: Tensor) -> Pass:
        """Return the pass over the scratch's last nodes, whose tokens are ``ids_N``."""
        memory, scratch = self.memory, self.scratch
        count, total = len(ids_N), scratch.total
        rows = memory.rows[total - count : total]
        positions = rows if scratch.is_chain else on_device(scratch.positions(count), rows.device)
        allowed = scratch.mask(count, rows.device)
        mask = None if allowed is None else memory.cos.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
        return Pass(ids_N, rows, memory.cos[positions], memory.sin[positions], total, mask, lost=memory.lost)


def said(logits: Tensor, states: Sequence[Tensor]) -> Forward:
    """Join logits and the tapped layers' hidden states [N, C] in a `Forward`."""
    if not states:
        return Forward(logits)
    return Forward(logits, states[0].unsqueeze(1) if len(states) == 1 else torch.stack(list(states), dim=1))
