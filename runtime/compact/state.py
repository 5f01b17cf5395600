"""`ModelState` over the compact forward: one preallocated cache for all layers, committed rows first, then scratch rows. Where
memory keeps its address, every shape of pass is graphed once (`runtime.graphs`):

    nodes N    1, 2, 4, … up to `MOST_NODES`; a pass over more (a prefill) is not graphed
    rows T     steps of 256, and of an eighth of the next lower power of two from 2,048 on
    scratch S  of a tree: a power of two

A pass takes the next larger shape: few shapes are few graphs, and spare nodes cost little where a pass waits for memory.
Its padding nodes write rows after the scratch, which no node sees; rows
that nobody wrote hold zeros, as a masked row must be finite. Shape suffixes: N nodes, T rows, S scratch nodes, C hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from runtime.adapter import Forward, Scratch
from runtime.compact.forward import LayerCache, Lost, Pass, forward, signed
from runtime.compact.weights import CompactWeights
from runtime.device import on_device
from runtime.graphs import GraphMaker, Program, Programs


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


MOST_NODES = 128
LEAST_ROWS = 256


@dataclass(frozen=True)
class Size:
    """Shape of a graphed pass; ``scratch`` 0: all scratch nodes are one chain."""

    nodes: int
    rows: int
    scratch: int


class Slot:
    """Memory for one request at a time, and the passes graphed over it."""

    def __init__(self, weights: CompactWeights, capacity: int, maker: GraphMaker) -> None:
        self.memory = Memory(weights, rounded_rows(capacity), clean=True)
        self._passes = Programs(maker)

    def graphed(self, size: Size, layers: tuple[int, ...]) -> "GraphedPass":
        """Return the pass of ``size`` that taps ``layers``, graphed if it is the first of its kind."""
        return self._passes.get((size, layers), lambda maker: GraphedPass(self.memory, maker, size, layers))

    def grow(self, capacity: int) -> None:
        """Make room for ``capacity`` rows; what was graphed read the old ones."""
        self.memory.grow(rounded_rows(capacity))
        self._passes = Programs(self._passes.maker)


class GraphedPass:
    """One shape of pass with its inputs: tokens, the first node's row and, for a tree, what the nodes see of the scratch."""

    def __init__(self, memory: Memory, maker: GraphMaker, size: Size, layers: tuple[int, ...]) -> None:
        device = memory.rows.device
        self._memory, self._size, self._layers = memory, size, layers
        self._tokens_N = torch.zeros(size.nodes, dtype=torch.int64, device=device)
        self._positions_N = torch.zeros_like(self._tokens_N)
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._committed = torch.ones_like(self._start)
        self._seen_NS = torch.zeros(size.nodes, size.scratch, dtype=torch.bool, device=device)
        self._maker = maker
        self._run: Program[tuple[Tensor, list[Tensor]]] | None = None

    def __call__(self, ids: Tensor, scratch: Scratch) -> tuple[Tensor, list[Tensor]]:
        """Compute logits [N, V] and tapped states [N, C] of the scratch's last nodes, with tokens ``ids``, then padding rows."""
        count, device = len(ids), ids.device
        self._tokens_N[:count] = ids
        self._start.fill_(scratch.total - count)
        if self._size.scratch:
            self._committed.fill_(scratch.committed)
            self._positions_N[:count] = on_device(scratch.positions(count), device)
            seen = scratch.topology(count)
            self._seen_NS.zero_()[:count, : seen.shape[1]] = on_device(seen, device)
        if self._run is None:  # not before its inputs say which rows are its own to write
            self._run = self._maker.make(self._forward)
        return self._run()

    def _forward(self) -> tuple[Tensor, list[Tensor]]:
        memory, size = self._memory, self._size
        rows_N, rows_T = memory.rows[: size.nodes] + self._start, memory.rows[: size.rows]
        if size.scratch:  # nodes see all committed rows, and of the scratch what its topology allows
            place_T, last = rows_T - self._committed, size.scratch - 1
            of_scratch_NT = self._seen_NS.index_select(1, place_T.clamp(0, last)) & (place_T <= last)
            positions_N, seen_NT = self._positions_N, (place_T < 0) | of_scratch_NT
        else:
            positions_N, seen_NT = rows_N, rows_T <= rows_N.unsqueeze(1)
        mask_NT = memory.cos.new_zeros(seen_NT.shape).masked_fill_(~seen_NT, -torch.inf)
        angles = memory.cos[positions_N], memory.sin[positions_N]
        call = Pass(self._tokens_N, rows_N, *angles, size.rows, mask_NT, lost=memory.lost)
        return forward(memory.weights, call, memory.caches, size.nodes, self._layers)


class GraphedState(CompactState):
    """One request's state in a `Slot`, its own until it is gone."""

    def __init__(self, slot: Slot, layers: tuple[int, ...]) -> None:
        super().__init__(slot.memory, layers)
        self._slot = slot

    def _forward(self, ids_N: Tensor, last: int) -> Forward:
        count = len(ids_N)
        if count > MOST_NODES:
            return super()._forward(ids_N, last)
        scratch, nodes = self.scratch, power_of_two(count)
        end = scratch.total - count + nodes
        if end > self.memory.capacity:
            self._grow(end)
        held = 0 if scratch.is_chain else power_of_two(scratch.total - scratch.committed)
        run = self._slot.graphed(Size(nodes, rounded_rows(end), held), self._layers)
        logits, states = run(ids_N, scratch)
        return said(logits[count - last : count].clone(), [state[:count].clone() for state in states])

    def _grow(self, capacity: int) -> None:
        self._slot.grow(capacity)


def power_of_two(count: int) -> int:
    """Round ``count`` up to a power of two: 4 of 3 and of 4."""
    return 1 << (count - 1).bit_length()


def rounded_rows(count: int) -> int:
    """Round ``count`` up to the rows that a graphed pass over so many reads.

    Examples
    --------
    >>> [rounded_rows(count) for count in (1, 256, 257, 2049, 5000)]
    [256, 256, 512, 2304, 5120]
    """
    step = max(LEAST_ROWS, (1 << count.bit_length() - 1) // 8)
    return -(-count // step) * step
