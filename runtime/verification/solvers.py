"""Optimal-transport solvers with simple forms. Formulas: specification of verification, section 4.

nss                       y ~ p                                                            naive sampling, ignores q
naive                     x_1 with a = min(1, p(x_1) / q(x_1)), else R = norm [p - q]_+    (R may hit other children)
specinfer                 recursive rejection with replacement (Miao et al. 2024)
rrs_without_replacement   recursive rejection with Q_j = q off the earlier draws (Yang et al. 2024)
khisti                    naive for a token Z among the draws, against Z's own law (`runtime.verification.tournament`)

On deterministic candidates q is one-hot at each draw and the first four are nss, which is optimal there (section 5). Shape
suffixes: R rows, K draws, V vocabulary.
"""

from dataclasses import replace

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.tree import DraftLaw
from runtime.verification.draws import Draws, take
from runtime.verification.outcome import at_row, excess_mass
from runtime.verification.residual_chain import residual_chain, residual_weights
from runtime.verification.top_down import Solution
from runtime.verification.tournament import run_tournament


def nss(draws: Draws) -> Solution:
    """Draw from the target; a child is found by luck."""
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
        chain = residual_chain(draws, rows, solution.miss_R[at])
        draft_scale_R[at] = chain.draft_scale_R
        rejected_RK = (1 - chain.accept_RK).cumprod(1)
        solution.direct_RK[at] = chain.accept_RK
        solution.direct_RK[at, 1:] *= rejected_RK[:, :-1]
        solution.miss_R[at] = rejected_RK[:, -1]

    def residual(row: int | Tensor) -> Tensor:
        return residual_weights(draws, row, torch.ones_like(draft_scale_R), draft_scale_R)

    return replace(solution, residual=residual)


def khisti(draws: Draws) -> Solution:
    """Naive verification of a tournament's winner. Per node with several draws: one sort of the vocabulary per draw and a host
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

    return Solution(solution.direct_RK, solution.miss_R, solution.at_draws_RK, residual)


def empty_solution(draws: Draws) -> Solution:
    """Every row as a leaf: nothing is taken, y ~ p."""
    direct_RK = draws.target_RV.new_zeros(len(draws.lists), draws.width, dtype=torch.float64)
    one_R = direct_RK.new_ones(len(direct_RK))
    return Solution(direct_RK, one_R, torch.zeros_like(direct_RK), lambda row: at_row(draws.target_RV, row))
