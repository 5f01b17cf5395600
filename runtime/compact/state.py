"""`ModelState` over the compact forward: one preallocated cache for all layers, committed rows first, then scratch rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from runtime.adapter import Forward
from runtime.compact.forward import Pass, forward
from runtime.compact.memory import Memory
from runtime.device import on_device
from runtime.scratch import Scratch


class CompactState:
    """One request's state; its memory's rows double where they do not suffice."""

    def __init__(self, memory: Memory, layers: tuple[int, ...]) -> None:
        self._memory = memory
        self._layers = layers
        self._scratch = Scratch()

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int] | Tensor, parents: Sequence[int] | None = None, last: int | None = None
    ) -> Forward:
        ids = on_device(tokens, self._memory.rows.device)
        self._scratch.append(len(ids), parents)
        if self._scratch.total > self._memory.capacity:
            self._grow(max(self._scratch.total, 2 * self._memory.capacity))
        return self._forward(ids, last or len(ids))

    @torch.inference_mode()
    def keep(self, path: Sequence[int], pending: int = 0) -> None:
        if list(path) != list(range(len(path))):
            first = self._scratch.committed
            self._memory.move([first + node for node in path], first)
        self._scratch.keep(path, pending)

    @property
    def committed(self) -> int:
        """Rows of committed tokens."""
        return self._scratch.committed

    @property
    def total(self) -> int:
        """Rows in use."""
        return self._scratch.total

    def go_on_from(self, other: "CompactState", first: int) -> None:
        """Take over what ``other``, of a copy of the model, holds: its nodes, and its rows from row ``first`` on. The nodes are
        one for both from now on, and one of both works at a time."""
        self._scratch = other._scratch
        if other.total > self._memory.capacity:
            self._grow(other._memory.capacity)
        self._memory.copy_rows(other._memory, first, other.total)

    def _forward(self, ids_N: Tensor, last: int) -> Forward:
        logits, states = forward(self._memory.weights, self._pass(ids_N), self._memory.caches, last, self._layers)
        return said(logits, states)

    def _grow(self, capacity: int) -> None:
        self._memory.grow(capacity)

    def _pass(self, ids_N: Tensor) -> Pass:
        memory, scratch = self._memory, self._scratch
        count, total = len(ids_N), scratch.total
        rows = memory.rows[total - count : total]
        positions = rows if scratch.is_chain else on_device(scratch.positions(count), rows.device)
        allowed = scratch.mask(count, rows.device)
        mask = None if allowed is None else memory.cos.new_zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
        return Pass(ids_N, rows, memory.cos[positions], memory.sin[positions], total, mask)


def said(logits: Tensor, states: Sequence[Tensor]) -> Forward:
    """Logits and the tapped layers' hidden states [N, C], side by side."""
    if not states:
        return Forward(logits)
    return Forward(logits, states[0].unsqueeze(1) if len(states) == 1 else torch.stack(list(states), dim=1))
