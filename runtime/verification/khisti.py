"""The Khisti rule (canonical decomposition): an intermediate token Z among the draws, then the naive test against Z's own law.

    B(xs -> y) = Σ_z P[Z = z] (1[y = z] a(z) + (1 - a(z)) R(y)),  a = min(1, p / q_I),  R = norm [p - q_I]_+

Z is chosen by a tournament (`runtime.verification.tournament`); where a node has one draw, Z is it and q_I = q. Per node with
several draws: one sort of the vocabulary per draw and a host read. Source: Khisti et al. 2025; specification of verification,
section 4. Shape suffix: K draws, V vocabulary.
"""

import torch
from torch import Tensor

from runtime.verification.draws import Draws
from runtime.verification.solvers import naive
from runtime.verification.top_down import Solution
from runtime.verification.tournament import run_tournament


def khisti(draws: Draws) -> Solution:
    """Naive verification of the tournament's winner."""
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
