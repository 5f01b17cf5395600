"""A tree that grows while nobody looks: every draw is a copy of its node, drafted behind on its own, until all are read at once.

Copies of one node hold the same tokens, so what the draft says behind them differs by rounding at most. All are drawn from under
the law of the node's first copy, which is the one that the finished tree holds. Shape suffixes: E copies of a level's nodes, W
draws under each, V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count, islice

import torch
from torch import Tensor

from predictors.signals import NextLaw
from runtime.drafting.growth import ROOT, Growth


@dataclass(frozen=True)
class Copies:
    """A level: the copies' ``numbers`` and those of the copies above them; their ``tokens`` [E] and for each the place [E] of the
    ``first`` copy of its node are known to the device only."""

    numbers: Sequence[int]
    parents: Sequence[int]
    tokens: Tensor
    first: Tensor

    def below(self, rows_EW: Tensor) -> "Copies":
        """The next level, of what was drawn under each copy in rows (`runtime.drafting.distinct`)."""
        width, start = rows_EW.shape[1] - 1, self.numbers[-1] + 1
        tokens, above = rows_EW[:, :width].flatten(), self.first.repeat_interleave(width)
        same_EE = (tokens.unsqueeze(1) == tokens) & (above.unsqueeze(1) == above)
        return Copies(
            range(start, start + len(tokens)),
            [number for number in self.numbers for _ in range(width)],
            tokens,
            same_EE.view(torch.uint8).argmax(dim=1),
        )


class UnreadTree:
    """Levels of copies, the laws that each was drawn from, and what was drawn."""

    def __init__(self, device: torch.device) -> None:
        none = torch.zeros(1, dtype=torch.int64, device=device)
        self.copies = Copies([ROOT], [ROOT], none, none)  # of the level that is drawn next
        self._drawn: list[tuple[Sequence[NextLaw], Tensor]] = []

    def draw(self, laws: Sequence[NextLaw], rows_EW: Tensor) -> None:
        """Add what was drawn under the copies of a level from their ``laws``."""
        self._drawn.append((laws, rows_EW))
        self.copies = self.copies.below(rows_EW)

    def read(self, growth: Growth, eos_tokens: Collection[int]) -> dict[int, list[int]]:
        """Read everything and draw it in ``growth``, nothing behind a token of ``eos_tokens``. Returns, of every node that was
        drawn from, the numbers of its first copy and of those that this one hangs under, from the root's child on."""
        read = torch.cat([rows_EW.flatten() for _, rows_EW in self._drawn]).tolist() if self._drawn else []
        values, numbers, paths = iter(read), count(ROOT), dict[int, list[int]]()
        level: list[tuple[int | None, list[int]]] = [(ROOT, [])]  # the copies' nodes, and those above each copy
        for laws, rows_EW in self._drawn:
            below: list[tuple[int | None, list[int]]] = []
            width = rows_EW.shape[1] - 1
            for (node, above), law, number in zip(level, laws, numbers, strict=False):
                *tokens, possible = islice(values, width + 1)
                path = above if node == ROOT else [*above, number]
                children: list[int | None] = []
                if node is not None:
                    growth.laws.setdefault(node, law)
                    paths.setdefault(node, path)
                    drawn = [growth.draw(node, token) for token in tokens[:possible]]
                    children = [None if growth.tokens[child] in eos_tokens else child for child in drawn]
                below += [(child, path) for child in [*children, *[None] * (width - len(children))]]
            level = below
        return paths
