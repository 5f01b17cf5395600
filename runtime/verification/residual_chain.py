"""Recursive rejection at one node in closed form.

A node that must still emit the target mass g_0 = a p (a in (0, 1]) tries its draws x_1, x_2, … in order:

    accept x_j with min(1, g_{j-1}(x_j) / Q_j(x_j)),  on rejection  g_j = [g_{j-1} - Q_j]_+ / (1 - Σ_y min(g_{j-1}, Q_j))

With replacement Q_j = q; without, Q_j = q / Z_j off the earlier draws, Z_j = 1 - Σ_{i<j} q(x_i). A rejected token has no mass
left, so every state has the form (specification of verification, section 4; Z_j = 1 with replacement)

    g_j = [a p - μ_j q]_+ / Π_j,      μ_0 = 0, Π_0 = 1
    μ_j = μ_{j-1} + Π_{j-1} / Z_j,    D_j = (1 - a_{j-1}) + Σ_y [a p - μ_j q]_+ / Π_{j-1},    Π_j = Π_{j-1} D_j
    a_j = Σ_y [a p - μ_j q]_+ / Π_j   (a_0 = a; a_j = 1 for ever if a = 1),   D_j = P(draw j is rejected)

one V-sum per draw and no stored vectors. Without replacement this needs draws in draw order. Shape suffixes: R rows, K draws,
V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.verification.draws import Draws, take
from runtime.verification.outcome import excess_mass


@dataclass(frozen=True)
class ResidualChain:
    """Of R rows, in float64: ``accept_RK``, the weight with which draw j is accepted once the earlier ones were rejected, and
    after all draws the weight ``weight_R`` that is left (a_k) and the scale ``draft_scale_R`` (μ_k)."""

    accept_RK: Tensor
    weight_R: Tensor
    draft_scale_R: Tensor


def residual_chain(draws: Draws, rows: list[int], scale_R: Tensor) -> ResidualChain:
    """Run the draws of ``rows``, which must emit ``scale_R`` [R] times their target law."""
    accept_RK = scale_R.new_zeros(len(rows), draws.width)
    weight_R, mu_R, pi_R = scale_R.clone(), torch.zeros_like(scale_R), torch.ones_like(scale_R)
    remaining_R = _draft_mass(draws, rows) if draws.without_replacement else pi_R.clone()
    target_RK, draft_RK = take(draws.target_at_RK, rows), take(draws.draft_at_RK, rows)
    for j in range(draws.width):
        alive = [place for place, row in enumerate(rows) if len(draws.lists[row]) > j]
        if not alive:
            break
        at = slice(None) if len(alive) == len(rows) else torch.tensor(alive, device=scale_R.device)
        here = [rows[place] for place in alive]
        scale, pi, target, draft = scale_R[at], pi_R[at], target_RK[at, j], draft_RK[at, j]
        left = torch.maximum(remaining_R[at], draft)
        ratio = (scale * target - mu_R[at] * draft) * left / (pi * draft)
        accept_RK[at, j] = torch.where(draft > 0, ratio, 0.0).nan_to_num(0.0).clamp(0, 1)
        mu_R[at] += pi / left
        mass = excess_mass(take(draws.target_RV, here), take(draws.draft_RV, here), scale, mu_R[at])
        pi_R[at] = pi * (1 - weight_R[at]) + mass
        weight_R[at] = (mass / pi_R[at]).nan_to_num(1.0)  # 0/0: rejection is impossible, and so is this state
        if draws.without_replacement:
            remaining_R[at] -= draft
    return ResidualChain(accept_RK, weight_R, mu_R)


def _draft_mass(draws: Draws, rows: list[int]) -> Tensor:
    """Σ q [R], which is 1 only up to the laws' rounding; what is left after likely draws hangs on it."""
    return take(draws.draft_RV, rows).sum(1, dtype=torch.float64)
