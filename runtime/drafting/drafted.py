"""What a round drafted, to the target's pass and to those who look at it."""

from collections.abc import Sequence
from typing import TypeAlias

from predictors.signals import NextLaw
from runtime.adapter import Forward
from runtime.drafting.unread import UnreadTree
from runtime.tree import TokenTree


class DraftedTree:
    """A ``tree`` that the host has read. The target's pass goes over ``tokens`` [M] under ``parents`` (-1: the root), its nodes.
    Of a chain the first ``looked_up`` nodes were not drawn; ``laws`` are those that the others were drawn from."""

    def __init__(self, tree: TokenTree, laws: list[NextLaw], looked_up: int = 0) -> None:
        self.tree, self.laws, self.looked_up = tree, laws, looked_up
        self.tokens, self.parents = tree.tokens, tree.parent_list

    def of_nodes(self, out: Forward) -> Forward:
        """Of a pass over the newest token and ``tokens``, the rows of the root and of the tree's nodes."""
        return out

    def places(self, path: Sequence[int]) -> Sequence[int]:
        """Which of ``tokens`` a ``path`` of nodes goes through."""
        return path


Drafted: TypeAlias = DraftedTree | UnreadTree
