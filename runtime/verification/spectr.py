"""SpecTr's K-SEQ (Sun et al. 2023): every draw is tested against the target thinned by ρ.

    β(ρ) = Σ_x min(p(x) / ρ, q(x)),  p_acc = 1 - (1 - β)^k,  ρ* in [1, k]: p_acc(ρ) = ρ β(ρ)
    try x_1 … x_k with a(x) = min(1, p(x) / (ρ q(x)));  else y ~ R = norm(p - min(q, p / ρ) p_acc / β)

Any ρ in [ρ*, k] is lossless and a smaller one is not, so the root is bracketed and its upper end taken. The left side less the
right one falls with ρ. Source: specification of verification, section 4. Shape suffixes: R rows, K draws, V vocabulary.
"""

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.verification.draws import Draws, take
from runtime.verification.outcome import at_row, excess_mass
from runtime.verification.solvers import empty_solution
from runtime.verification.top_down import Solution

HALVINGS = {torch.float32: 24, torch.float64: 48}


def spectr(draws: Draws) -> Solution:
    """The K-SEQ solution of every row. A single draw needs no sum: ρ = 1, p_acc = β, and R misses the draw."""
    solution = empty_solution(draws)
    share_R = draws.present_RK[:, :1].sum(1).double()  # p_acc / β: 1 for a single draw, 0 at leaves
    rho_R = torch.ones_like(share_R)
    rows = draws.rows(at_least=2)
    if rows:
        at = on_device(rows, rho_R.device)
        rho_R[at], share_R[at], solution.at_draws_RK[at] = _thinned(draws, rows, draws.present_RK[at].sum(1).double())
    target_RK, draft_RK = draws.target_at_RK, draws.draft_at_RK
    accept_RK = (target_RK / (rho_R.unsqueeze(1) * draft_RK)).nan_to_num(0.0, posinf=0.0).clamp(max=1)
    accept_RK = torch.where(draws.present_RK & (draft_RK > 0), accept_RK, 0.0)
    rejected_RK = (1 - accept_RK).cumprod(1)
    accept_RK[:, 1:] *= rejected_RK[:, :-1]
    miss_R = rejected_RK[:, -1] if draws.width else solution.miss_R

    def residual(row: int | Tensor) -> Tensor:
        target_V = at_row(draws.target_RV, row)
        rho, share = (at_row(values, row).to(target_V.dtype) for values in (rho_R, share_R))
        return residual_weights(target_V, draws.draft_law(row), rho, share)

    return Solution(accept_RK, miss_R, solution.at_draws_RK, residual)


def _thinned(draws: Draws, rows: list[int], count_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ρ [R], p_acc / β [R] and R at the draws [R, K] of rows with several draws."""
    target_RV, draft_RV = take(draws.target_RV, rows), take(draws.draft_RV, rows)
    rho_R = thinning(target_RV, draft_RV, count_R)
    share_R = shares(target_RV, draft_RV, rho_R, count_R)
    rho_R1, share_R1 = (values.to(target_RV.dtype).unsqueeze(1) for values in (rho_R, share_R))
    # Σ of the weights is 1 - p_acc only up to rounding, which decides where p_acc is near 1: normalise by what is there
    weights_RV = residual_weights(target_RV, draft_RV, rho_R1, share_R1)
    mass_R = weights_RV.sum(1).double()
    at_draws_RK = weights_RV.gather(1, take(draws.tokens_RK, rows)).double() / mass_R.unsqueeze(1)
    return rho_R, share_R, at_draws_RK.nan_to_num(0.0)


def thinning(target_RV: Tensor, draft_RV: Tensor, count_R: Tensor) -> Tensor:
    """ρ [R] float64 at or just above ρ* for ``count_R`` draws; 1 for a single draw, equal laws and disjoint ones.

    p_acc > ρ β is tested as Σ [p - ρ q]_+ > (1 - β)^k: near equal laws both sides are tiny and their difference from 1 is noise.
    """
    one_R = torch.ones_like(count_R)
    low_R, high_R = one_R, count_R.clone()
    for _ in range(HALVINGS.get(target_RV.dtype, 24)):
        middle_R = (low_R + high_R) / 2
        missed_R = excess_mass(draft_RV, target_RV, one_R, 1 / middle_R) ** count_R
        above_R = excess_mass(target_RV, draft_RV, one_R, middle_R) > missed_R
        low_R, high_R = torch.where(above_R, middle_R, low_R), torch.where(above_R, high_R, middle_R)
    disjoint_R = torch.minimum(target_RV, draft_RV).sum(1) == 0
    return torch.where(disjoint_R, 1.0, high_R)


def accept_masses(target_RV: Tensor, draft_RV: Tensor, rho_R: Tensor) -> tuple[Tensor, Tensor]:
    """β(ρ) and 1 - β(ρ) [R] float64, each summed by itself: their difference from 1 matters where they are small."""
    thinned_RV = target_RV / rho_R.to(target_RV.dtype).unsqueeze(1)
    hit_R = torch.minimum(thinned_RV, draft_RV).sum(1).double()
    miss_R = (draft_RV - thinned_RV).clamp_(min=0).sum(1).double()
    return hit_R, miss_R


def shares(target_RV: Tensor, draft_RV: Tensor, rho_R: Tensor, count_R: Tensor) -> Tensor:
    """p_acc / β [R]; k in the limit of β = 0."""
    hit_R, miss_R = accept_masses(target_RV, draft_RV, rho_R)
    accepted_R = -torch.expm1(count_R * miss_R.clamp(min=0).log())  # 1 - (1 - β)^k
    return torch.where(hit_R > 0, accepted_R / hit_R, count_R)


def residual_weights(target: Tensor, draft: Tensor, rho: Tensor, share: Tensor) -> Tensor:
    return (target - torch.minimum(draft, target / rho) * share).clamp(min=0)
