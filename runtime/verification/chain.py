"""Verifiers of one drafted chain x_1 … x_g.

    ρ_t = p(x_t | x_<t) / q(x_t | x_<t)

tokenwise (Leviathan et al. 2023; Chen et al. 2023)
    accept x_t with probability min(1, ρ_t); at the first failure emit y ~ norm[p - q]_+; after all, y ~ p

block (Sun et al. 2024)
    P_0 = 1,  P_t = min(1, P_{t-1} ρ_t)                                              prefix weights
    R_t(y) = [P_t p(y | x_<=t) - q(y | x_<=t)]_+,  S_t = Σ_y R_t(y)                   q := 0 after x_g
    h_t = S_t / (S_t + 1 - P_t)   (0/0 := 1)
    τ = max{t : u_t <= h_t},  y ~ norm R_τ

so P(τ = t) = h_t Π_{s>t} (1 - h_s), P(τ >= t | x) = P_t, and E[τ] is the largest any lossless rule of this form can reach.
``hsd``, the lossless reading of hierarchical speculative decoding, has the same weights, tests and residuals (specification
of verification, section 3.1) and is an alias. Ratios, prefix weights and tests are float64 logarithms; residual rows keep the
laws' dtype. Shape suffixes: G drafted tokens, V vocabulary; "G1" is G + 1 rows.
"""

import torch
from torch import Tensor

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import OutcomeLaw, normalised_or, root_only


def tokenwise(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Accept each token by its own ratio. Source: Leviathan et al. 2023, Algorithm 1."""
    if tree.num_nodes == 0:
        return root_only(target_probs)
    draft_probs_G1V, log_ratio_G = _chain_laws(tree, target_probs)
    log_accept_G = log_ratio_G.clamp(max=0)
    zero = log_accept_G.new_zeros(1)
    log_reach_G1 = torch.cat([zero, log_accept_G.cumsum(0)])
    fail_G1 = torch.cat([-torch.expm1(log_accept_G), zero + 1])

    def residual(row: int | Tensor) -> Tensor:
        return normalised_or((target_probs[row] - draft_probs_G1V[row]).clamp(min=0), target_probs[row])

    return OutcomeLaw(_normalised(log_reach_G1.exp() * fail_G1), tree.depths, residual)


def block(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
    """Accept the longest prefix the joint ratio supports. Source: Sun et al. 2024, block verification."""
    if tree.num_nodes == 0:
        return root_only(target_probs)
    draft_probs_G1V, log_ratio_G = _chain_laws(tree, target_probs)
    log_joint_G1 = torch.cat([log_ratio_G.new_zeros(1), log_ratio_G.cumsum(0)])
    log_prefix_G1 = log_joint_G1 - log_joint_G1.cummax(0).values
    prefix_G1 = log_prefix_G1.exp()
    prefix_G11 = prefix_G1.to(target_probs.dtype).unsqueeze(1)
    residual_G1V = (prefix_G11 * target_probs - draft_probs_G1V).clamp(min=0)
    mass_G1 = residual_G1V.sum(1, dtype=torch.float64)
    excess_G1 = -torch.expm1(log_prefix_G1)
    stop_here_G1 = torch.where(mass_G1 + excess_G1 > 0, mass_G1 / (mass_G1 + excess_G1), 1.0)
    stop_here_G1[0] = 1.0
    later_G1 = (1 - stop_here_G1).flip(0).cumprod(0).flip(0)
    stop_G1 = stop_here_G1 * torch.cat([later_G1[1:], later_G1.new_ones(1)])

    def residual(row: int | Tensor) -> Tensor:
        return normalised_or(residual_G1V[row], target_probs[row])

    return OutcomeLaw(_normalised(stop_G1), tree.depths, residual)


def _chain_laws(tree: TokenTree, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Draft laws [G + 1, V] with a zero last row, and log ρ_t [G] in float64 (−inf where p or q is 0)."""
    if not tree.is_chain:
        raise ValueError("this verifier needs a chain (node i under node i - 1, each drawn once); use a tree verifier.")
    chosen_G = tree.tokens.unsqueeze(1).to(target_probs.device)
    if tree.law is DraftLaw.DETERMINISTIC or tree.draft_probs is None:
        draft_probs_G1V = torch.zeros_like(target_probs)
        draft_probs_G1V[:-1].scatter_(1, chosen_G, 1.0)
    else:
        draft_probs_G1V = tree.draft_probs.to(target_probs.device, copy=True)
        draft_probs_G1V[-1] = 0
    target_G = target_probs[:-1].gather(1, chosen_G).squeeze(1).double()
    draft_G = draft_probs_G1V[:-1].gather(1, chosen_G).squeeze(1).double()
    possible_G = (target_G > 0) & (draft_G > 0)
    return draft_probs_G1V, torch.where(possible_G, target_G.log() - draft_G.log(), -torch.inf)


def _normalised(stop: Tensor) -> Tensor:
    return stop / stop.sum()
