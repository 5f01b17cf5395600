"""What a round drafted, to the target's pass and to those who look at it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from predictors.signals import NextLaw
from runtime.adapter import Forward
from runtime.tree import TokenTree


class Drafted(Protocol):
    """The target's pass goes over ``tokens`` [M] under ``parents`` (-1: the root): the nodes of the ``tree``, or more copies of
    them while the host has not read any (`runtime.drafting.unread`). Of a chain the first ``looked_up`` nodes were not drawn;
    ``laws`` are those that the others were drawn from."""

    @property
    def tokens(self) -> Tensor: ...

    @property
    def parents(self) -> Sequence[int]: ...

    @property
    def tree(self) -> TokenTree: ...

    @property
    def laws(self) -> list[NextLaw]: ...

    @property
    def looked_up(self) -> int: ...

    def of_nodes(self, out: Forward) -> Forward:
        """Of a pass over the newest token and ``tokens``, the rows of the root and of the tree's nodes."""
        ...

    def places(self, path: Sequence[int]) -> Sequence[int]:
        """Which of ``tokens`` a ``path`` of nodes goes through."""
        ...


class DraftedTree:
    """`Drafted`: the tree itself."""

    def __init__(self, tree: TokenTree, laws: list[NextLaw], looked_up: int = 0) -> None:
        self.tree, self.laws, self.looked_up = tree, laws, looked_up
        self.tokens, self.parents = tree.tokens, tree.parent_list

    def of_nodes(self, out: Forward) -> Forward:
        return out

    def places(self, path: Sequence[int]) -> Sequence[int]:
        return path
