"""A tree's ordered child lists as padded tensors, beside the laws they were drawn from.

Shape suffixes: R rows (N + 1: the root, then the nodes), K most draws of a row, V vocabulary.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import at_row, normalised_or


class Draws:
    """The draws of every row, of a tree or of nodes from anywhere.

    ``lists`` are the rows' draws in order as node indices, ``tokens`` [N] the nodes' tokens, ``law`` how they were drawn, and
    ``draft_RV`` the laws they came from.
    ``nodes_RK`` are node indices, ``tokens_RK`` their tokens, ``present_RK`` and ``first_RK`` whether a draw exists and is the
    first of its token. A token drawn twice is one child, reached through its first copy; padding repeats a row's first draw.
    """

    def __init__(
        self, lists: list[list[int]], tokens: Tensor, law: DraftLaw, target_RV: Tensor, draft_RV: Tensor | None
    ) -> None:
        self.target_RV = target_RV
        self.lists = lists
        self.law = law
        self._draft_RV = draft_RV
        self.width = max((len(nodes) for nodes in self.lists), default=0)
        device = target_RV.device
        counts = torch.tensor([len(nodes) for nodes in self.lists]).unsqueeze(1)
        padded = [[*nodes, *(nodes or [0])[:1] * (self.width - len(nodes))] for nodes in self.lists]
        firsts = [[node not in nodes[:j] for j, node in enumerate(nodes)] for nodes in padded]
        present_RK = torch.arange(self.width) < counts
        first_RK = torch.tensor(firsts, dtype=torch.bool).reshape(present_RK.shape) & present_RK
        nodes_RK = torch.tensor(padded, dtype=torch.int64).reshape(present_RK.shape)
        self.present_RK, self.first_RK = on_device(present_RK, device), on_device(first_RK, device)
        self.nodes_RK, self.tokens = on_device(nodes_RK, device), on_device(tokens, device)
        self.tokens_RK = self.tokens[self.nodes_RK] if len(tokens) else self.nodes_RK

    @staticmethod
    def of(tree: TokenTree, target_RV: Tensor) -> "Draws":
        """Those of a tree: row 0 the root's, row i + 1 node i's."""
        return Draws(tree.child_lists, tree.tokens, tree.law, target_RV, tree.draft_probs)

    @cached_property
    def draft_RV(self) -> Tensor:
        """Laws the rows' children were drawn from; rows without draws hold anything."""
        if self._draft_RV is None:
            raise ValueError(
                "this verifier weighs draws by the distribution they came from, and deterministic candidates have none."
            )
        return self._draft_RV.to(self.target_RV)

    @cached_property
    def target_at_RK(self) -> Tensor:
        """Target probability of each draw's token, float64."""
        return self.target_RV.gather(1, self.tokens_RK).double()

    @cached_property
    def draft_at_RK(self) -> Tensor:
        """Draft probability of each draw's token, float64."""
        if not self.width:
            return torch.zeros_like(self.target_at_RK)
        return self.draft_RV.gather(1, self.tokens_RK).double()

    @property
    def without_replacement(self) -> bool:
        return self.law is DraftLaw.WITHOUT_REPLACEMENT

    def rows(self, at_least: int = 1, among: Sequence[int] | None = None) -> list[int]:
        """Rows (``among`` these) with at least so many draws."""
        candidates = range(len(self.lists)) if among is None else among
        return [row for row in candidates if len(self.lists[row]) >= at_least]

    def draft_law(self, row: int | Tensor) -> Tensor:
        """Draft law [V] of a row, from which its first child was drawn; zero where nothing was drawn."""
        if not self.width:
            return torch.zeros_like(at_row(self.target_RV, row))
        return torch.where(at_row(self.present_RK, row)[0], at_row(self.draft_RV, row), 0.0)

    def last_draft_law(self, row: int | Tensor) -> Tensor:
        """Law [V] that the row's last child was drawn from."""
        draft_V = self.draft_law(row)
        if not self.width or not self.without_replacement:
            return draft_V
        present_K = at_row(self.present_RK, row)
        followed_K = torch.cat([present_K[1:], present_K.new_zeros(1)])
        left_V = self._without(draft_V, row, followed_K)
        return normalised_or(left_V, left_V)

    def without_children(self, row: int | Tensor, weights_V: Tensor) -> Tensor:
        """``weights_V`` with the row's children made impossible."""
        return self._without(weights_V, row, at_row(self.present_RK, row)) if self.width else weights_V

    def _without(self, weights_V: Tensor, row: int | Tensor, drop_K: Tensor) -> Tensor:
        kept_K = (~drop_K).to(weights_V.dtype)
        ones_V = torch.ones_like(weights_V)
        return weights_V * ones_V.scatter_reduce(0, at_row(self.tokens_RK, row), kept_K, "amin")


def take(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Rows of a tensor; a view where they are consecutive."""
    if len(rows) == rows[-1] - rows[0] + 1:
        return tensor[rows[0] : rows[-1] + 1]
    return tensor[on_device(rows, tensor.device)]
