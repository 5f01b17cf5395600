"""`ModelState` over the compact forward: one preallocated cache for all layers, committed rows first, then scratch rows."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from runtime.adapter import Forward
from runtime.compact.forward import Pass, forward, signed
from runtime.compact.weights import CompactWeights
from runtime.scratch import Scratch


class CompactState:
    """One request's state; ``capacity`` rows are held at once and double where they do not suffice."""

    def __init__(self, weights: CompactWeights, capacity: int, layers: tuple[int, ...]) -> None:
        self._weights = weights
        self._layers = layers
        self._scratch = Scratch()
        self._reserve(capacity)

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        embedding = self._weights.embedding
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=embedding.device)
        ids = ids.clamp(max=len(embedding) - 1)  # padding ids a smaller vocabulary lacks
        self._scratch.append(len(ids), parents)
        if self._scratch.total > len(self._rows):
            self._grow(max(self._scratch.total, 2 * len(self._rows)))
        logits, states = forward(self._weights, self._pass(ids), self._caches, last or len(ids), self._layers)
        if not states:
            return Forward(logits)
        return Forward(logits, states[0].unsqueeze(1) if len(states) == 1 else torch.stack(states, dim=1))

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        if list(path) != list(range(len(path))):
            first = self._scratch.committed
            rows = self._tensor(path) + first
            for cache in chain.from_iterable(self._caches):
                cache[:, :, first : first + len(path)] = cache[:, :, rows]
        self._scratch.keep(path, pending)

    def _pass(self, ids_N: Tensor) -> Pass:
        count, total = len(ids_N), self._scratch.total
        rows = self._rows[total - count : total]
        positions = rows if self._scratch.is_chain else self._tensor(self._scratch.positions(count))
        allowed = self._scratch.mask(count, rows.device)
        mask = None if allowed is None else self._cos.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
        return Pass(ids_N, rows, self._cos[positions], self._sin[positions], total, mask)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self._rows.device)

    def _reserve(self, capacity: int) -> None:
        """Rows, rotary tables and an empty cache for ``capacity`` tokens."""
        weights = self._weights
        self._rows = torch.arange(capacity, device=weights.embedding.device)
        cos, sin = weights.rotary(weights.embedding, self._rows.unsqueeze(0))
        self._cos, self._sin = cos[0], signed(sin[0])
        shape = (1, weights.key_heads, capacity, weights.head_dim)
        self._caches = [
            (weights.embedding.new_empty(shape), weights.embedding.new_empty(shape)) for _ in weights.layers
        ]

    def _grow(self, capacity: int) -> None:
        held = self._caches
        self._reserve(capacity)
        for new, old in zip(chain.from_iterable(self._caches), chain.from_iterable(held), strict=True):
            new[:, :, : old.shape[2]] = old
