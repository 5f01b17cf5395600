"""Who sees whom among a tree's nodes: one mask, grown with the tree and sliced for every pass.

    mask[i, j] = 1  iff  j is i or an ancestor of i

A node's row is its parent's row and itself, so appending a level copies rows and never touches earlier ones: the mask of the tree
cut after any node is a slice. For chains that part at the root and lie depth by depth (i = level · width + chain) it is
j ≡ i (mod width) and j <= i. Source: specification of drafting, section 5.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

CAPACITY = 64


class TopologyMask:
    """The mask of the nodes appended so far, on the host."""

    def __init__(self) -> None:
        self._mask = torch.zeros(CAPACITY, CAPACITY, dtype=torch.bool)
        self.num_nodes = 0

    def append(self, parents: Sequence[int]) -> None:
        """Append nodes by parent (an earlier node, or -1)."""
        end = self.num_nodes + len(parents)
        if end > len(self._mask):
            self._grow(end)
        pending = list(parents)
        while pending:  # a run of nodes whose parents are all there is one copy
            start = self.num_nodes
            run = next((place for place, parent in enumerate(pending) if parent >= start), len(pending))
            rows = torch.tensor(pending[:run])
            self._mask[start : start + run] = self._mask[rows.clamp(min=0)] & (rows >= 0).unsqueeze(1)
            self._mask[start : start + run].diagonal(start).fill_(True)
            self.num_nodes += run
            pending = pending[run:]

    def rows(self, count: int) -> Tensor:
        """Rows of the last ``count`` nodes [count, num_nodes]."""
        return self._mask[self.num_nodes - count : self.num_nodes, : self.num_nodes]

    def _grow(self, size: int) -> None:
        old = self._mask
        capacity = max(size, 2 * len(old))
        self._mask = torch.zeros(capacity, capacity, dtype=torch.bool)
        self._mask[: len(old), : len(old)] = old
