"""Drafted trees: a tree while it grows, and what the target's pass and those who look at it get of it.

On an accelerator a tree grows while nobody looks: every draw is a copy of its node, drafted after on its own, until all are
read at once. Copies of one node hold the same tokens, so what the draft predicts after them differs by rounding at most. All
are drawn from under the distribution of the node's first copy, which the finished tree holds. The target's pass goes over the
copies, too, and may begin before the host has read them. Shape suffixes: E copies of a level's nodes, W draws under each.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor

from predictors.signals import NextLaw
from runtime.adapter import Forward
from runtime.device import on_device, read_later
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree

ROOT = -1


@dataclass
class Growth:
    """A tree while it grows on the host. ``copies`` counts how often each node was drawn; ``laws`` holds the distribution after
    each extended node."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    laws: dict[int, NextLaw] = field(default_factory=dict)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def draw(self, parent: int, token: int) -> int:
        """Record a draw of ``token`` under ``parent``; equal siblings are one node."""
        node = self._known.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.copies.append(0)
        self.draws.append(node)
        self.copies[node] += 1
        return node

    @property
    def drawn_from(self) -> list[NextLaw]:
        """The distributions that the nodes were drawn from, one each."""
        return [self.laws[parent] for parent in self.parents]

    def tree(self, law: DraftLaw) -> TokenTree:
        if not self.tokens:
            return EMPTY_TREE
        return TokenTree(
            tokens=torch.tensor(self.tokens),
            parents=torch.tensor(self.parents),
            draws=torch.tensor(self.draws),
            draft_probs=None if law is DraftLaw.DETERMINISTIC else self._draft_probs(),
            law=law,
        )

    def _draft_probs(self) -> Tensor:
        none_V = torch.zeros_like(next(iter(self.laws.values())).probs_V)
        return torch.stack(
            [self.laws[node].probs_V if node in self.laws else none_V for node in range(ROOT, len(self.tokens))]
        )


class DraftedTree:
    """A drafted ``tree`` that the host has read. The target's pass goes over ``tokens`` [M] under ``parents`` (-1: the root), its
    nodes. Of a chain the first ``looked_up`` nodes were not drawn; ``laws`` are those that the others were drawn from."""

    def __init__(self, tree: TokenTree, laws: list[NextLaw], looked_up: int = 0) -> None:
        self.tree, self.laws, self.looked_up = tree, laws, looked_up
        self.tokens, self.parents = tree.tokens, tree.parent_list

    def of_nodes(self, out: Forward) -> Forward:
        """Select the rows of the root and of the tree's nodes, of a pass over the newest token and ``tokens``."""
        return out

    def places(self, path: Sequence[int]) -> Sequence[int]:
        """Return the indices into ``tokens`` of a ``path`` of nodes."""
        return path


@dataclass(frozen=True)
class Copies:
    """A level of a tree that the host has not read: the copies' ``numbers`` and those of the copies above them; their ``tokens``
    [E], and for each the index [E] of the ``first`` copy of its node, are known to the device only."""

    numbers: Sequence[int]
    parents: Sequence[int]
    tokens: Tensor
    first: Tensor

    def below(self, rows_EW: Tensor) -> "Copies":
        """Return the next level: what was drawn under each copy, in rows (`runtime.drafting.sampler`)."""
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
    """A drafted tree that the host has not read: the target's pass goes over copies of the nodes. It grows level by level:
    copies, the distributions that each was drawn from, what was drawn. The tree ends at ``eos_tokens``."""

    looked_up = 0

    def __init__(self, device: torch.device, law: DraftLaw, eos_tokens: Collection[int]) -> None:
        none = torch.zeros(1, dtype=torch.int64, device=device)
        self.copies = Copies([ROOT], [ROOT], none, none)  # of the level that is drawn next
        self.parents: list[int] = []
        self._law = law
        self._eos_tokens = eos_tokens
        self._drawn: list[tuple[Sequence[NextLaw], Tensor]] = []
        self._tokens: list[Tensor] = []
        self._paths: dict[int, list[int]] = {}  # of every node, its first copy and those that this one hangs under
        self._values: Callable[[], list[int]] = list

    def draw(self, laws: Sequence[NextLaw], rows_EW: Tensor) -> None:
        """Add what was drawn under the copies of a level from their ``laws``."""
        self._drawn.append((laws, rows_EW))
        self.copies = self.copies.below(rows_EW)
        self.parents += self.copies.parents
        self._tokens.append(self.copies.tokens)

    def close(self) -> None:
        """End the tree after its last level: its tokens go to the host before anything that the device is given from now on."""
        self._values = read_later(torch.cat([rows_EW.flatten() for _, rows_EW in self._drawn]))

    @property
    def tokens(self) -> Tensor:
        return torch.cat(self._tokens)

    @cached_property
    def tree(self) -> TokenTree:
        return self._growth.tree(self._law)

    @property
    def laws(self) -> list[NextLaw]:
        return self._growth.drawn_from

    def of_nodes(self, out: Forward) -> Forward:
        first = [0, *(1 + self._paths[node][-1] for node in range(self.tree.num_nodes))]
        rows = on_device(first, out.logits.device)
        return Forward(out.logits[rows], None if out.hidden_NKD is None else out.hidden_NKD[rows])

    def places(self, path: Sequence[int]) -> Sequence[int]:
        return self._paths[path[-1]] if path else path

    def drafted_behind(self, path: Sequence[int]) -> list[int]:
        """Return the nodes of ``path`` after which something was drafted."""
        return [node for node in path if node in self._growth.laws]

    @cached_property
    def _growth(self) -> Growth:
        """The tree without copies, as the host reads it."""
        growth, values, number = Growth(), iter(self._values()), 0
        level: list[tuple[int | None, list[int]]] = [(ROOT, [])]  # the copies' nodes, and those above each copy
        for laws, rows_EW in self._drawn:
            below: list[tuple[int | None, list[int]]] = []
            width = rows_EW.shape[1] - 1
            for (node, above), law in zip(level, laws, strict=True):
                *tokens, possible = islice(values, width + 1)
                if node is not None:
                    growth.laws.setdefault(node, law)
                for place, token in enumerate(tokens):
                    path, child = [*above, number], None
                    if node is not None and place < possible:
                        child = growth.draw(node, token)
                        self._paths.setdefault(child, path)
                    below.append((None if token in self._eos_tokens else child, path))
                    number += 1
            level = below
        return growth


Drafted: TypeAlias = DraftedTree | UnreadTree
