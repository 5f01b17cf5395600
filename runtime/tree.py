"""A drafted tree that knows how it was drawn. A chain is a tree; a tree without nodes is valid.

Shape suffixes: N nodes, M draws, V vocabulary.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import torch
from torch import Tensor


class DraftLaw(Enum):
    """A way of drawing the children of a node from the draft's distribution there."""

    IID = "i.i.d."
    WITHOUT_REPLACEMENT = "without replacement"
    DETERMINISTIC = "deterministic"


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A drafted tree: ``tokens`` [N] int64 and the distributions they were drawn from.

    ``parents`` [N] int64: -1 is the root; a parent comes before its children. ``draws`` [M] int64: node indices in draw order; a
    node drawn twice appears twice; ``None``: every node once, in order. ``draft_probs`` [N + 1, V]: row 0 is the distribution
    that the root's children were really drawn from, row i + 1 that of node i's; rows without draws are ignored; ``None`` only for
    deterministic trees. ``law``: how children were drawn.
    """

    tokens: Tensor
    parents: Tensor
    draws: Tensor | None = None
    draft_probs: Tensor | None = None
    law: DraftLaw = DraftLaw.IID

    def __post_init__(self) -> None:
        if self.tokens.shape != self.parents.shape or self.tokens.dim() != 1:
            raise ValueError(
                f"tokens {tuple(self.tokens.shape)} and parents {tuple(self.parents.shape)} must both have shape [N]."
            )
        if self.draft_probs is None:
            if self.law is not DraftLaw.DETERMINISTIC:
                raise ValueError(
                    f"a tree drawn {self.law.value} needs draft_probs: no drafted token without its distribution."
                )
        elif len(self.draft_probs) != len(self.tokens) + 1:
            raise ValueError(f"draft_probs has {len(self.draft_probs)} rows, expected N + 1 = {len(self.tokens) + 1}.")
        if self.draws is None:
            object.__setattr__(self, "draws", torch.arange(len(self.tokens), device=self.parents.device))

    @property
    def num_nodes(self) -> int:
        return len(self.tokens)

    @cached_property
    def parent_list(self) -> list[int]:
        """Parents of the nodes, on the host; checked to be topologically ordered."""
        parents: list[int] = self.parents.tolist()
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise ValueError(
                    f"node {node} has parent {parent}: a parent comes before its children (-1 is the root)."
                )
        return parents

    @cached_property
    def token_list(self) -> list[int]:
        """Tokens of the nodes, on the host."""
        tokens: list[int] = self.tokens.tolist()
        return tokens

    def read_with(self, numbers: Tensor) -> list[int]:
        """Read int64 ``numbers`` [n] on the host. Where the tokens still have to be read from a device, they come along."""
        if "token_list" in vars(self) or not self.num_nodes:
            return numbers.tolist()
        read: list[int] = torch.cat([numbers, self.tokens.to(numbers.device)]).tolist()
        vars(self)["token_list"] = read[len(numbers) :]
        return read[: len(numbers)]

    @cached_property
    def child_lists(self) -> list[list[int]]:
        """Draws of every row in order, as node indices: row 0 the root's, row i + 1 node i's; a node drawn twice appears twice.

        Siblings with equal tokens are one child, the first of them: what was drawn below the others is never reached.
        """
        assert self.draws is not None
        lists: list[list[int]] = [[] for _ in range(self.num_nodes + 1)]
        first: dict[tuple[int, int], int] = {}
        drawn: list[int] = self.draws.tolist()
        if set(drawn) != set(range(self.num_nodes)):
            raise ValueError(f"draws {drawn} must name every one of the {self.num_nodes} nodes at least once.")
        for node in drawn:
            row = self.parent_list[node] + 1
            lists[row].append(first.setdefault((row, self.token_list[node]), node))
        if self.law is not DraftLaw.IID and any(len(set(nodes)) < len(nodes) for nodes in lists):
            raise ValueError(
                f"a token was drawn twice under one node, which cannot be in a tree drawn {self.law.value}."
            )
        return lists

    @cached_property
    def depths(self) -> list[int]:
        """Depth of every row on the host: 0 for the root (row 0), then one entry per node; length N + 1."""
        depths = [0]
        for parent in self.parent_list:
            depths.append(depths[parent + 1] + 1)
        return depths

    @cached_property
    def rows_by_depth(self) -> list[list[int]]:
        """Rows of depth 0 (the root alone), 1, …"""
        levels: list[list[int]] = [[] for _ in range(max(self.depths) + 1)]
        for row, depth in enumerate(self.depths):
            levels[depth].append(row)
        return levels

    @cached_property
    def is_chain(self) -> bool:
        """True if node i hangs under node i - 1 and every node was drawn once."""
        assert self.draws is not None
        nodes = range(self.num_nodes)
        return self.parent_list == [node - 1 for node in nodes] and sorted(self.draws.tolist()) == list(nodes)

    def path(self, row: int) -> list[int]:
        """Return node indices from the root's child to row ``row``'s node; empty for row 0."""
        nodes = []
        node = row - 1
        while node >= 0:
            nodes.append(node)
            node = self.parent_list[node]
        return nodes[::-1]


def behind(newest: int, tokens: Tensor) -> Tensor:
    """Put the ``newest`` token in front of ``tokens`` [N + 1], where these are."""
    return torch.cat([tokens.new_full((1,), newest), tokens])


def chain_tree(tokens: Tensor, draft_probs: Tensor) -> TokenTree:
    """Make a tree of a chain of ``tokens`` [N] drawn one after the other from the first N rows of ``draft_probs`` [N + 1, V]."""
    return TokenTree(
        tokens=tokens, parents=torch.arange(-1, len(tokens) - 1), draft_probs=draft_probs, law=DraftLaw.IID
    )


EMPTY_TREE = TokenTree(
    tokens=torch.empty(0, dtype=torch.int64), parents=torch.empty(0, dtype=torch.int64), law=DraftLaw.DETERMINISTIC
)
