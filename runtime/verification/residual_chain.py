"""Recursive rejection at one node in closed form.

A node that must still emit the target mass g_0 = a p (a in (0, 1]) tries its draws x_1, x_2, … in order:

    accept x_j with min(1, g_{j-1}(x_j) / Q_j(x_j)),  on rejection  g_j = [g_{j-1} - Q_j]_+ / (1 - Σ_y min(g_{j-1}, Q_j))

With replacement Q_j = q; without, Q_j is q off the earlier draws, normalised: Q_{j+1} = Q_j / z_j off x_j, z_j what is left. A
rejected token has no mass any more, so every state has the form (specification of verification, section 4; z = 1 with
replacement; taking μ in units of the current Q keeps all numbers of order one, however sharp q is)

    g_j = [a p - μ_j Q_j]_+ / Π_j                                                           off the rejected draws
    μ_0 = 0, Π_0 = 1,   μ_j = z_{j-1} μ_{j-1} + Π_{j-1}
    D_j = (1 - a_{j-1}) + Σ_y [a p - μ_j Q_j]_+ / Π_{j-1} = P(draw j is rejected),   Π_j = Π_{j-1} D_j
    a_j = Σ_y [a p - μ_j Q_j]_+ / Π_j   (a_0 = a; a_j = 1 for ever if a = 1)

one V-sum per draw (two without replacement). Without replacement this needs draws in draw order. Shape suffixes: R rows, K draws,
V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.device import on_device
from runtime.verification.draws import Draws, take
from runtime.verification.outcome import at_row, excess_mass


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
    return ResidualChain(accept_RK, weight_R, mu_R)


def residual_weights(draws: Draws, row: int | Tensor, scale_R: Tensor, draft_scale_R: Tensor) -> Tensor:
    """[a p - μ Q]_+ [V] of a row after all its draws; a p where there were none."""
    target_V = at_row(draws.target_RV, row)
    scale, draft_scale = (at_row(scales, row).to(target_V.dtype) for scales in (scale_R, draft_scale_R))
    weights_V = (scale * target_V - draft_scale * draws.last_draft_law(row)).clamp(min=0)
    return draws.without_children(row, weights_V) if draws.without_replacement else weights_V


def _off_earlier(target_RV: Tensor, draft_RV: Tensor, earlier_RK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both laws without earlier draws, the draft's normalised, and what its last draw left of it [R].

    What is left is summed, not subtracted from 1: after a likely draw it may be far below the laws' rounding.
    """
    target_RV, before_RV = target_RV.scatter(1, earlier_RK, 0.0), draft_RV.scatter(1, earlier_RK[:, :-1], 0.0)
    after_RV = before_RV.scatter(1, earlier_RK[:, -1:], 0.0)
    after_R = after_RV.sum(1, dtype=torch.float64)
    left_R = after_R / before_RV.sum(1, dtype=torch.float64)
    return target_RV, after_RV / after_R.to(after_RV.dtype).unsqueeze(1), left_R
