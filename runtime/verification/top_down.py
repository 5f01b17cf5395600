"""Top-down verification: at each node an optimal-transport solver turns the drawn children into one token.

A solver is given the k ordered draws x_1 … x_k at a node and returns y ~ p over the draws. If y is a child, the walk goes
on there; if not, y is emitted; at a leaf y ~ p. Its branching probability (specification of verification, section 4) is

    B(xs -> y) = P[a draw equal to y is taken directly] + P[none is taken] R(y)

so P(reach child c of u) = P(reach u) B_u(c), and stopping at u leaves R off the children. The solvers:

nss                       y ~ p                                                            naive sampling, ignores q
naive                     x_1 with a = min(1, p(x_1) / q(x_1)), else R = norm [p - q]_+    (R may hit other children)
specinfer                 recursive rejection with replacement (Miao et al. 2024)
rrs_without_replacement   recursive rejection with Q_j = q off the earlier draws (Yang et al. 2024)
khisti                    naive for a token Z among the draws, against Z's own distribution (`runtime.verification.tournament`)
spectr                    K-SEQ (Sun et al. 2023): every draw is tested against the target thinned by ρ
    β(ρ) = Σ_x min(p(x) / ρ, q(x)),  p_acc = 1 - (1 - β)^k,  ρ* in [1, k]: p_acc(ρ) = ρ β(ρ)
    try x_1 … x_k with a(x) = min(1, p(x) / (ρ q(x)));  else y ~ R = norm(p - min(q, p / ρ) p_acc / β)

Any ρ in [ρ*, k] is lossless and a smaller one is not, so the root is bracketed and its upper end taken. The left side less the
right one falls with ρ. On deterministic candidates q is one-hot at each draw and the first four are nss, which is optimal there
(section 5). Shape suffixes: R rows (the root, then the nodes), K draws, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import DraftLaw, TokenTree
from runtime.verification.draws import Draws, residual_chain, residual_weights, take
from runtime.verification.outcome import OutcomeLaw, Rule, at_row, excess_mass, normalised, normalised_or
from runtime.verification.tournament import run_tournament

HALVINGS = {torch.float32: 24, torch.float64: 48}
ANY = frozenset(DraftLaw)


@dataclass(frozen=True)
class Solution:
    """Treatment of every row's draws by a solver; leaves take nothing and emit from p.

    ``direct_RK``: P[draw j is taken directly]; ``miss_R``: P[none is]; ``at_draws_RK``: R at each draw's token; all float64.
    ``residual(row)``: R [V], unnormalised.
    """

    direct_RK: Tensor
    miss_R: Tensor
    at_draws_RK: Tensor
    residual: Callable[[int | Tensor], Tensor]


Solver = Callable[[Draws], Solution]


def top_down(solver: Solver) -> Rule:
    """Make the rule that walks down a tree with ``solver``."""

    def rule(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        draws = Draws.of(tree, target_probs)
        solution = solver(draws)
        at_children_RK = torch.where(draws.first_RK, solution.at_draws_RK, 0.0)
        reach_R = _reach(tree, draws, branching(draws, solution))
        stop_R = reach_R * solution.miss_R * (1 - at_children_RK.sum(1)).clamp(min=0)

        def residual(row: int | Tensor) -> Tensor:
            weights_V = draws.without_children(row, solution.residual(row))
            return normalised_or(weights_V, at_row(target_probs, row))

        return OutcomeLaw(normalised(stop_R), tree.depths, residual)

    return rule


def branching(draws: Draws, solution: Solution) -> Tensor:
    """Compute branching probabilities [R, K] float64 of every row's draws; those of a token drawn several times sum to its B."""
    at_children_RK = torch.where(draws.first_RK, solution.at_draws_RK, 0.0)
    step_RK = solution.direct_RK + solution.miss_R.unsqueeze(1) * at_children_RK
    return torch.where(draws.present_RK, step_RK, 0.0)


def _reach(tree: TokenTree, draws: Draws, step_RK: Tensor) -> Tensor:
    """Compute P(the walk comes through each row) [R]: the product of branching probabilities along the path to it."""
    branching_R = step_RK.new_zeros(len(step_RK))
    branching_R.index_add_(0, draws.nodes_RK.flatten() + 1, step_RK.flatten())
    reach_R = torch.zeros_like(branching_R)
    reach_R[0] = 1.0
    parents_R = on_device([0, *(parent + 1 for parent in tree.parent_list)], reach_R.device)
    for level in tree.rows_by_depth[1:]:
        at = on_device(level, reach_R.device)
        reach_R[at] = reach_R[parents_R[at]] * branching_R[at]
    return reach_R


def nss(draws: Draws) -> Solution:
    """Naive sampling: draw from the target; a child is taken if it is the token drawn."""
    return replace(empty_solution(draws), at_draws_RK=draws.target_at_RK)


def naive(draws: Draws) -> Solution:
    """Test the first draw only."""
    if draws.law is DraftLaw.DETERMINISTIC:
        return nss(draws)
    solution = empty_solution(draws)
    rows = draws.rows()
    if rows:
        at = on_device(rows, solution.miss_R.device)
        target_RV, draft_RV = take(draws.target_RV, rows), take(draws.draft_RV, rows)
        target_RK, draft_RK = draws.target_at_RK[at], draws.draft_at_RK[at]
        one_R = solution.miss_R[at]
        mass_R = excess_mass(target_RV, draft_RV, one_R, one_R)
        accept_R = torch.where(draft_RK[:, 0] > 0, (target_RK[:, 0] / draft_RK[:, 0]).clamp(max=1), 0.0)
        solution.direct_RK[at, 0] = accept_R
        solution.miss_R[at] = 1 - accept_R
        solution.at_draws_RK[at] = ((target_RK - draft_RK).clamp(min=0) / mass_R.unsqueeze(1)).nan_to_num(0.0)
    return replace(solution, residual=lambda row: (at_row(draws.target_RV, row) - draws.draft_law(row)).clamp(min=0))


def recursive_rejection(draws: Draws) -> Solution:
    """Try every draw in order; the residual never holds a rejected token."""
    if draws.law is DraftLaw.DETERMINISTIC:
        return nss(draws)
    solution = empty_solution(draws)
    draft_scale_R = torch.zeros_like(solution.miss_R)
    rows = draws.rows()
    if rows:
        at = on_device(rows, draft_scale_R.device)
        accept_RK, _, draft_scale_R[at] = residual_chain(draws, rows, solution.miss_R[at])
        rejected_RK = (1 - accept_RK).cumprod(1)
        solution.direct_RK[at] = accept_RK
        solution.direct_RK[at, 1:] *= rejected_RK[:, :-1]
        solution.miss_R[at] = rejected_RK[:, -1]

    def residual(row: int | Tensor) -> Tensor:
        return residual_weights(draws, row, torch.ones_like(draft_scale_R), draft_scale_R)

    return replace(solution, residual=residual)


def khisti(draws: Draws) -> Solution:
    """Verify a tournament's winner as `naive`. Per node with several draws: one sort of the vocabulary per draw and a host
    read."""
    solution = naive(draws)
    laws: dict[int, Tensor] = {}
    for row in draws.rows(at_least=2):
        target_V, count = draws.target_RV[row], len(draws.lists[row])
        tournament = run_tournament(target_V, draws.draft_RV[row], count)
        tokens_K = draws.tokens_RK[row, :count]
        share_K = tokens_K.new_tensor(tournament.winner(tokens_K.tolist()), dtype=torch.float64)
        residual_V = (target_V - tournament.law_V).clamp(min=0)
        target_K, selected_K = target_V[tokens_K].double(), tournament.law_V[tokens_K].double()
        accept_K = torch.where(selected_K > 0, (target_K / selected_K).clamp(max=1), 0.0)
        mass = residual_V.sum(dtype=torch.float64)
        solution.direct_RK[row, :count] = share_K * accept_K
        solution.miss_R[row] = (share_K * (1 - accept_K)).sum()
        solution.at_draws_RK[row, :count] = (residual_V[tokens_K].double() / mass).nan_to_num(0.0)
        laws[row] = tournament.law_V

    def residual(row: int | Tensor) -> Tensor:
        law_V = laws.get(int(row))
        return solution.residual(row) if law_V is None else (draws.target_RV[int(row)] - law_V).clamp(min=0)

    return replace(solution, residual=residual)


def empty_solution(draws: Draws) -> Solution:
    """Treat every row as a leaf: nothing is taken, y ~ p."""
    direct_RK = draws.target_RV.new_zeros(len(draws.lists), draws.width, dtype=torch.float64)
    one_R = direct_RK.new_ones(len(direct_RK))
    return Solution(direct_RK, one_R, torch.zeros_like(direct_RK), lambda row: at_row(draws.target_RV, row))


def spectr(draws: Draws) -> Solution:
    """Solve every row by K-SEQ. A single draw needs no sum: ρ = 1, p_acc = β, and R misses the draw."""
    solution = empty_solution(draws)
    share_R = draws.present_RK[:, :1].sum(1).double()  # p_acc / β: 1 for a single draw, 0 at leaves
    rho_R = torch.ones_like(share_R)
    rows = draws.rows(at_least=2)
    if rows:
        at = on_device(rows, rho_R.device)
        target_RV, draft_RV = take(draws.target_RV, rows), take(draws.draft_RV, rows)
        rho_R[at], share_R[at], weights_RV = thinned(target_RV, draft_RV, draws.present_RK[at].sum(1).double())
        # Σ of the weights is 1 - p_acc only up to rounding, which decides where p_acc is near 1: normalise by what is there
        mass_R = weights_RV.sum(1).double()
        at_draws_RK = weights_RV.gather(1, take(draws.tokens_RK, rows)).double() / mass_R.unsqueeze(1)
        solution.at_draws_RK[at] = at_draws_RK.nan_to_num(0.0)
    target_RK, draft_RK = draws.target_at_RK, draws.draft_at_RK
    accept_RK = (target_RK / (rho_R.unsqueeze(1) * draft_RK)).nan_to_num(0.0, posinf=0.0).clamp(max=1)
    accept_RK = torch.where(draws.present_RK & (draft_RK > 0), accept_RK, 0.0)
    rejected_RK = (1 - accept_RK).cumprod(1)
    accept_RK[:, 1:] *= rejected_RK[:, :-1]
    miss_R = rejected_RK[:, -1] if draws.width else solution.miss_R

    def residual(row: int | Tensor) -> Tensor:
        target_V = at_row(draws.target_RV, row)
        rho, share = (at_row(values, row).to(target_V.dtype) for values in (rho_R, share_R))
        return _off_share(target_V, draws.draft_law(row), rho, share)

    return Solution(accept_RK, miss_R, solution.at_draws_RK, residual)


def thinned(target_RV: Tensor, draft_RV: Tensor, count_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find ρ at or just above ρ* and p_acc / β, [R] float64, and the weights of R [R, V] for ``count_R`` draws; ρ is 1 for a
    single draw, equal distributions and disjoint ones.

    p_acc > ρ β is tested as Σ [p - ρ q]_+ > (1 - β)^k: if p ≈ q both sides are tiny and their difference from 1 is noise.
    """
    one_R = torch.ones_like(count_R)
    low_R, high_R = one_R, count_R.clone()
    for _ in range(HALVINGS.get(target_RV.dtype, 24)):
        middle_R = (low_R + high_R) / 2
        missed_R = excess_mass(draft_RV, target_RV, one_R, 1 / middle_R) ** count_R
        above_R = excess_mass(target_RV, draft_RV, one_R, middle_R) > missed_R
        low_R, high_R = torch.where(above_R, middle_R, low_R), torch.where(above_R, high_R, middle_R)
    disjoint_R = torch.minimum(target_RV, draft_RV).sum(1) == 0
    rho_R = torch.where(disjoint_R, 1.0, high_R)
    thinned_RV = target_RV / rho_R.to(target_RV.dtype).unsqueeze(1)
    hit_R = torch.minimum(thinned_RV, draft_RV).sum(1).double()
    miss_R = (draft_RV - thinned_RV).clamp_(min=0).sum(1).double()  # not 1 - β: the difference matters where β is small
    accepted_R = -torch.expm1(count_R * miss_R.clamp(min=0).log())  # 1 - (1 - β)^k
    share_R = torch.where(hit_R > 0, accepted_R / hit_R, count_R)  # k in the limit of β = 0
    rho_R1, share_R1 = (values.to(target_RV.dtype).unsqueeze(1) for values in (rho_R, share_R))
    return rho_R, share_R, _off_share(target_RV, draft_RV, rho_R1, share_R1)


def _off_share(target: Tensor, draft: Tensor, rho: Tensor, share: Tensor) -> Tensor:
    """Compute the weights of spectr's R."""
    return (target - torch.minimum(draft, target / rho) * share).clamp(min=0)


NODE_SOLVERS: dict[str, tuple[Solver, frozenset[DraftLaw]]] = {  # with the ways of drawing that each is lossless for
    "nss": (nss, ANY),
    "naive_tree": (naive, ANY),
    "spectr": (spectr, frozenset({DraftLaw.IID})),
    "khisti": (khisti, frozenset({DraftLaw.IID})),
    "specinfer": (recursive_rejection, frozenset({DraftLaw.IID, DraftLaw.DETERMINISTIC})),
    "rrs_without_replacement": (recursive_rejection, frozenset({DraftLaw.WITHOUT_REPLACEMENT, DraftLaw.DETERMINISTIC})),
}
