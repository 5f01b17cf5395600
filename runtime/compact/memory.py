"""A request's rows over the compact forward: keys and values of every layer and the rotary angles of every position."""

from collections.abc import Sequence
from itertools import chain

import torch

from runtime.compact.forward import LayerCache, signed
from runtime.compact.weights import CompactWeights
from runtime.device import on_device


class Memory:
    """``capacity`` rows: ``caches`` of the layers, keys and values [1, K, capacity, D]; ``cos`` and signed ``sin`` [capacity, D];
    ``rows`` [capacity] counts them. ``clean``: rows that were never written hold zeros."""

    def __init__(self, weights: CompactWeights, capacity: int, clean: bool = False) -> None:
        self.weights = weights
        self._clean = clean
        self._reserve(capacity)

    @property
    def capacity(self) -> int:
        return len(self.rows)

    def move(self, rows: Sequence[int], first: int) -> None:
        """Write cached ``rows`` behind one another from row ``first`` on."""
        moved = on_device(rows, self.rows.device)
        for cache in chain.from_iterable(self.caches):
            cache[:, :, first : first + len(rows)] = cache[:, :, moved]

    def clear(self) -> None:
        """Zeros everywhere: what an earlier request left need not be finite."""
        for cache in chain.from_iterable(self.caches):
            cache.zero_()

    def copy_rows(self, other: "Memory", first: int, last: int) -> None:
        """Rows ``first`` to ``last`` (not included) of ``other``, which may be on another device."""
        for own, theirs in zip(chain.from_iterable(self.caches), chain.from_iterable(other.caches), strict=True):
            own[:, :, first:last].copy_(theirs[:, :, first:last], non_blocking=True)

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` rows: what is cached moves to another place."""
        held = self.caches
        self._reserve(capacity)
        for new, old in zip(chain.from_iterable(self.caches), chain.from_iterable(held), strict=True):
            new[:, :, : old.shape[2]] = old

    def _reserve(self, capacity: int) -> None:
        weights = self.weights
        self.rows = torch.arange(capacity, device=weights.embedding.device)
        self.cos, sin = weights.rotary.table(self.rows, weights.embedding.dtype)
        self.sin = signed(sin)
        shape = (1, weights.key_heads, capacity, weights.head_dim)
        make = weights.embedding.new_zeros if self._clean else weights.embedding.new_empty
        self.caches: list[LayerCache] = [(make(shape), make(shape)) for _ in weights.layers]
