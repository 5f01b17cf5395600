"""SpecTr's K-SEQ (Sun et al. 2023): every draw is tested against the target thinned by ρ.

    β(ρ) = Σ_x min(p(x) / ρ, q(x)),  p_acc = 1 - (1 - β)^k,  ρ* in [1, k]: p_acc(ρ) = ρ β(ρ)
    try x_1 … x_k with a(x) = min(1, p(x) / (ρ q(x)));  else y ~ R = norm(p - min(q, p / ρ) p_acc / β)

Any ρ in [ρ*, k] is lossless and a smaller one is not, so the root is bracketed and its upper end taken. The left side less the
right one falls with ρ. Source: specification of verification, section 4. Shape suffixes: R rows, K draws, V vocabulary.
"""

import torch
from torch import Tensor

from runtime.verification.draws import Draws, take
from runtime.verification.outcome import excess_mass
from runtime.verification.solvers import empty_solution
from runtime.verification.top_down import Solution

HALVINGS = {torch.float32: 24, torch.float64: 48}


def spectr(draws: Draws) -> Solution:
    """The K-SEQ solution of every row."""
    solution = empty_solution(draws)
    rho_R, share_R = torch.ones_like(solution.miss_R), torch.zeros_like(solution.miss_R)
    rows = draws.rows()
    if rows:
        at = torch.tensor(rows, device=rho_R.device)
        count_R = draws.present_RK[at].sum(1).double()
        target_RV, draft_RV = take(draws.target_RV, rows), take(draws.draft_RV, rows)
        branching = draws.rows(at_least=2)
        if branching:
            laws = (take(draws.target_RV, branching), take(draws.draft_RV, branching))
            at_branching = torch.tensor(branching, device=rho_R.device)
            rho_R[at_branching] = thinning(*laws, draws.present_RK[at_branching].sum(1).double())
        share_R[at] = shares(target_RV, draft_RV, rho_R[at], count_R)
        target_RK, draft_RK = draws.target_at_RK[at], draws.draft_at_RK[at]
        accept_RK = torch.where(draft_RK > 0, (target_RK / (rho_R[at, None] * draft_RK)).clamp(max=1), 0.0)
        accept_RK *= draws.present_RK[at]
        rejected_RK = (1 - accept_RK).cumprod(1)
        solution.direct_RK[at] = accept_RK
        solution.direct_RK[at, 1:] *= rejected_RK[:, :-1]
        solution.miss_R[at] = rejected_RK[:, -1]
        rho_R1, share_R1 = (values[at, None].to(target_RV.dtype) for values in (rho_R, share_R))
        # Σ of the weights is 1 - p_acc only up to rounding, which decides where p_acc is near 1: normalise by what is there
        weights_RV = residual_weights(target_RV, draft_RV, rho_R1, share_R1)
        mass_R = weights_RV.sum(1).double()
        at_draws_RK = weights_RV.gather(1, draws.tokens_RK[at]).double() / mass_R.unsqueeze(1)
        solution.at_draws_RK[at] = at_draws_RK.nan_to_num(0.0)

    def residual(row: int | Tensor) -> Tensor:
        target_V = draws.target_RV[row]
        rho, share = (values[row].to(target_V.dtype) for values in (rho_R, share_R))
        return residual_weights(target_V, draws.draft_law(row), rho, share)

    return Solution(solution.direct_RK, solution.miss_R, solution.at_draws_RK, residual)


def thinning(target_RV: Tensor, draft_RV: Tensor, count_R: Tensor) -> Tensor:
    """ρ [R] float64 at or just above ρ* for ``count_R`` draws; 1 for a single draw, equal laws and disjoint ones.

    p_acc > ρ β is tested as Σ [p - ρ q]_+ > (1 - β)^k: near equal laws both sides are tiny and their difference from 1 is noise.
    """
    one_R = torch.ones_like(count_R)
    low_R, high_R = one_R, count_R.clone()
    for _ in range(HALVINGS[target_RV.dtype]):
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


def _accepted(miss_R: Tensor, count_R: Tensor) -> Tensor:
    """p_acc = 1 - (1 - β)^k."""
    return -torch.expm1(count_R * miss_R.clamp(min=0).log())


def shares(target_RV: Tensor, draft_RV: Tensor, rho_R: Tensor, count_R: Tensor) -> Tensor:
    """p_acc / β [R]; k in the limit of β = 0."""
    hit_R, miss_R = accept_masses(target_RV, draft_RV, rho_R)
    return torch.where(hit_R > 0, _accepted(miss_R, count_R) / hit_R, count_R)


def residual_weights(target: Tensor, draft: Tensor, rho: Tensor, share: Tensor) -> Tensor:
    return (target - torch.minimum(draft, target / rho) * share).clamp(min=0)
