"""Ordered child lists of a tree, padded, with the distributions they were drawn from, and recursive rejection of them.

A node that must still emit the target mass g_0 = a p (a in (0, 1]) tries its draws x_1, x_2, … in order:

    accept x_j with min(1, g_{j-1}(x_j) / Q_j(x_j)),  on rejection  g_j = [g_{j-1} - Q_j]_+ / (1 - Σ_y min(g_{j-1}, Q_j))

With replacement Q_j = q; without, Q_j is q off the earlier draws, normalised: Q_{j+1} = Q_j / z_j off x_j, z_j what is left. A
rejected token has no mass any more, so every state has the form (specification of verification, section 4; z = 1 with
replacement; taking μ in units of the current Q keeps all numbers of order one, however sharp q is)

    g_j = [a p - μ_j Q_j]_+ / Π_j                                                           off the rejected draws
    μ_0 = 0, Π_0 = 1,   μ_j = z_{j-1} μ_{j-1} + Π_{j-1}
    D_j = (1 - a_{j-1}) + Σ_y [a p - μ_j Q_j]_+ / Π_{j-1} = P(draw j is rejected),   Π_j = Π_{j-1} D_j
    a_j = Σ_y [a p - μ_j Q_j]_+ / Π_j   (a_0 = a; a_j = 1 for ever if a = 1)

one V-sum per draw (two without replacement). Without replacement this needs draws in draw order. Shape suffixes: R rows (N + 1:
the root, then the nodes), K most draws of a row, V vocabulary.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import at_row, excess_mass, normalised_or


class Draws:
    """Draws of every row, of a tree or of nodes from anywhere.

    ``lists`` are the rows' draws in order as node indices, ``tokens`` [N] the nodes' tokens, ``law`` how they were drawn, and
    ``draft_RV`` the distributions they came from.
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
        """Collect the draws of a tree: row 0 the root's, row i + 1 node i's."""
        return Draws(tree.child_lists, tree.tokens, tree.law, target_RV, tree.draft_probs)

    @cached_property
    def draft_RV(self) -> Tensor:
        """Distributions [R, V] that the rows' children were drawn from; rows without draws hold anything."""
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
        """List rows (``among`` these) with at least so many draws."""
        candidates = range(len(self.lists)) if among is None else among
        return [row for row in candidates if len(self.lists[row]) >= at_least]

    def draft_law(self, row: int | Tensor) -> Tensor:
        """Return the draft's distribution [V] of a row, from which its first child was drawn; zero where nothing was drawn."""
        if not self.width:
            return torch.zeros_like(at_row(self.target_RV, row))
        return torch.where(at_row(self.present_RK, row)[0], at_row(self.draft_RV, row), 0.0)

    def last_draft_law(self, row: int | Tensor) -> Tensor:
        """Return the distribution [V] that the row's last child was drawn from."""
        draft_V = self.draft_law(row)
        if not self.width or not self.without_replacement:
            return draft_V
        present_K = at_row(self.present_RK, row)
        followed_K = torch.cat([present_K[1:], present_K.new_zeros(1)])
        left_V = self._without(draft_V, row, followed_K)
        return normalised_or(left_V, left_V)

    def without_children(self, row: int | Tensor, weights_V: Tensor) -> Tensor:
        """Make the row's children impossible in ``weights_V``."""
        return self._without(weights_V, row, at_row(self.present_RK, row)) if self.width else weights_V

    def _without(self, weights_V: Tensor, row: int | Tensor, drop_K: Tensor) -> Tensor:
        kept_K = (~drop_K).to(weights_V.dtype)
        ones_V = torch.ones_like(weights_V)
        return weights_V * ones_V.scatter_reduce(0, at_row(self.tokens_RK, row), kept_K, "amin")


def take(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Take rows of a tensor; a view where they are consecutive."""
    if len(rows) == rows[-1] - rows[0] + 1:
        return tensor[rows[0] : rows[-1] + 1]
    return tensor[on_device(rows, tensor.device)]


def residual_chain(draws: Draws, rows: list[int], scale_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the draws of ``rows``, which must emit ``scale_R`` [R] times their target distribution. In float64: the weight [R, K]
    of accepting draw j once the earlier ones were rejected, and after all draws the weight [R] that is left (a_k) and μ_k [R]."""
    accept_RK = scale_R.new_zeros(len(rows), draws.width)
    weight_R, mu_R, pi_R = scale_R.clone(), torch.zeros_like(scale_R), torch.ones_like(scale_R)
    target_RV, draft_RV = take(draws.target_RV, rows), take(draws.draft_RV, rows)
    tokens_RK = take(draws.tokens_RK, rows)
    for j in range(draws.width):
        alive = [place for place, row in enumerate(rows) if len(draws.lists[row]) > j]
        if not alive:
            break
        at = slice(None) if len(alive) == len(rows) else on_device(alive, scale_R.device)
        target_V, draft_V, token = take(target_RV, alive), take(draft_RV, alive), tokens_RK[at, j : j + 1]
        if j and draws.without_replacement:
            target_V, draft_V, left_R = _off_earlier(target_V, draft_V, tokens_RK[at, :j])
            mu_R[at] *= left_R
        target, draft = (law.gather(1, token).squeeze(1).double() for law in (target_V, draft_V))
        scale, pi = scale_R[at], pi_R[at]
        ratio = (scale * target - mu_R[at] * draft) / (pi * draft)
        accept_RK[at, j] = torch.where(draft > 0, ratio, 0.0).nan_to_num(0.0).clamp(0, 1)
        mu_R[at] += pi
        mass = excess_mass(target_V, draft_V, scale, mu_R[at])
        pi_R[at] = pi * (1 - weight_R[at]) + mass
        weight_R[at] = (mass / pi_R[at]).nan_to_num(1.0)  # 0/0: rejection is impossible, and so is this state
    return accept_RK, weight_R, mu_R


def residual_weights(draws: Draws, row: int | Tensor, scale_R: Tensor, draft_scale_R: Tensor) -> Tensor:
    """Compute [a p - μ Q]_+ [V] of a row after all its draws; a p where there were none."""
    target_V = at_row(draws.target_RV, row)
    scale, draft_scale = (at_row(scales, row).to(target_V.dtype) for scales in (scale_R, draft_scale_R))
    weights_V = (scale * target_V - draft_scale * draws.last_draft_law(row)).clamp(min=0)
    return draws.without_children(row, weights_V) if draws.without_replacement else weights_V


def _off_earlier(target_RV: Tensor, draft_RV: Tensor, earlier_RK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Remove earlier draws from both distributions, the draft's normalised; what the draft's last draw left of it [R].

    What is left is summed, not subtracted from 1: after a likely draw it may be far below their rounding.
    """
    target_RV, before_RV = target_RV.scatter(1, earlier_RK, 0.0), draft_RV.scatter(1, earlier_RK[:, :-1], 0.0)
    after_RV = before_RV.scatter(1, earlier_RK[:, -1:], 0.0)
    after_R = after_RV.sum(1, dtype=torch.float64)
    left_R = after_R / before_RV.sum(1, dtype=torch.float64)
    return target_RV, after_RV / after_R.to(after_RV.dtype).unsqueeze(1), left_R
