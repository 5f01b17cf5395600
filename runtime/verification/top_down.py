"""Top-down verification: at each node an optimal-transport solver turns the drawn children into one token.

A solver is given the k ordered draws x_1 … x_k at a node and returns y with law p over the draws. If y is a child, the walk goes
on there; if not, y is emitted; at a leaf y ~ p. A solver's branching law (specification of verification, section 4) is

    B(xs -> y) = P[a draw equal to y is taken directly] + P[none is taken] R(y)

so P(reach child c of u) = P(reach u) B_u(c), and stopping at u leaves R off the children. Shape suffixes: R rows (the root, then
the nodes), K draws, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import TokenTree
from runtime.verification.draws import Draws
from runtime.verification.outcome import OutcomeLaw, at_row, normalised, normalised_or


@dataclass(frozen=True)
class Solution:
    """What a solver does with every row's draws; leaves take nothing and emit from p.

    ``direct_RK``: P[draw j is taken directly]; ``miss_R``: P[none is]; ``at_draws_RK``: R at each draw's token; all float64.
    ``residual(row)``: R [V], unnormalised.
    """

    direct_RK: Tensor
    miss_R: Tensor
    at_draws_RK: Tensor
    residual: Callable[[int | Tensor], Tensor]


Solver = Callable[[Draws], Solution]


def top_down(solver: Solver) -> Callable[[TokenTree, Tensor], OutcomeLaw]:
    """The rule that walks down a tree with ``solver``."""

    def rule(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        draws = Draws.of(tree, target_probs)
        solution = solver(draws)
        at_children_RK = torch.where(draws.first_RK, solution.at_draws_RK, 0.0)
        reach_R = _reach(tree, draws, _steps(draws, solution))
        stop_R = reach_R * solution.miss_R * (1 - at_children_RK.sum(1)).clamp(min=0)

        def residual(row: int | Tensor) -> Tensor:
            weights_V = draws.without_children(row, solution.residual(row))
            return normalised_or(weights_V, at_row(target_probs, row))

        return OutcomeLaw(normalised(stop_R), tree.depths, residual)

    return rule


def branching(solver: Solver, draws: Draws) -> Tensor:
    """Branching probabilities [R, K] float64 of every row's draws; those of a token drawn several times add up to its B."""
    return _steps(draws, solver(draws))


def _steps(draws: Draws, solution: Solution) -> Tensor:
    at_children_RK = torch.where(draws.first_RK, solution.at_draws_RK, 0.0)
    step_RK = solution.direct_RK + solution.miss_R.unsqueeze(1) * at_children_RK
    return torch.where(draws.present_RK, step_RK, 0.0)


def _reach(tree: TokenTree, draws: Draws, step_RK: Tensor) -> Tensor:
    """P(the walk comes through each row) [R]: the product of branching probabilities along the path to it."""
    branching_R = step_RK.new_zeros(len(step_RK))
    branching_R.index_add_(0, draws.nodes_RK.flatten() + 1, step_RK.flatten())
    reach_R = torch.zeros_like(branching_R)
    reach_R[0] = 1.0
    parents_R = on_device([0, *(parent + 1 for parent in tree.parent_list)], reach_R.device)
    for level in tree.rows_by_depth[1:]:
        at = on_device(level, reach_R.device)
        reach_R[at] = reach_R[parents_R[at]] * branching_R[at]
    return reach_R
