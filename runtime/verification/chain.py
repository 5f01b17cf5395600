"""Verifiers of one drafted chain x_1 … x_g.

    ρ_t = p(x_t | x_<t) / q(x_t | x_<t),  r_t = ρ_1 … ρ_t

tokenwise (Leviathan et al. 2023; Chen et al. 2023)
    accept x_t with probability min(1, ρ_t); at the first failure emit y ~ norm[p - q]_+; after all, y ~ p

block (Sun et al. 2024)
    P_0 = 1,  P_t = min(1, P_{t-1} ρ_t) = r_t / max_{j<=t} r_j                        prefix weights
    R_t(y) = [P_t p(y | x_<=t) - q(y | x_<=t)]_+,  S_t = Σ_y R_t(y)                   q := 0 after x_g
    h_t = S_t / (S_t + 1 - P_t)   (0/0 := 1; so h_0 = 1, h_g = P_g)
    τ = max{t : u_t <= h_t},  y ~ norm R_τ

so P(τ = t) = h_t Π_{s>t} (1 - h_s), P(τ >= t | x) = P_t, and E[τ] is the largest any lossless rule of this form can reach.
``hsd``, the lossless reading of hierarchical speculative decoding, has the same weights, tests and residuals (specification
of verification, section 3.1) and is an alias. Ratios, prefix weights and tests are float64; the V-sums and the residual keep
the distributions' dtype. Shape suffixes: G drafted tokens, V vocabulary; "G1" is G + 1 rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from runtime.tree import DraftLaw, TokenTree
from runtime.verification.outcome import OutcomeLaw, Rule, at_row, excess_mass, first_success, normalised, normalised_or


def _on_chains(weigh: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Rule:
    """Make a rule on chains of ``weigh``, which gives P(τ = t) [G + 1] and the residuals' weights P_t [G + 1], of the target's
    distributions [G, V], the draft's and log ρ_t [G]: y ~ norm [P_t p - q]_+ at row t, y ~ p at the last row."""

    def rule(tree: TokenTree, target_probs: Tensor) -> OutcomeLaw:
        if not tree.num_nodes:
            stop = target_probs.new_ones(1, dtype=torch.float64)
            return OutcomeLaw(stop, [0], lambda row: at_row(target_probs, row))
        if not tree.is_chain:
            raise ValueError(
                "this verifier needs a chain (node i under node i - 1, each drawn once); use a tree verifier."
            )
        target_GV, chosen_G1 = target_probs[:-1], tree.tokens.unsqueeze(1).to(target_probs.device)
        if tree.law is DraftLaw.DETERMINISTIC or tree.draft_probs is None:
            draft_GV = torch.zeros_like(target_GV).scatter_(1, chosen_G1, 1.0)
        else:
            draft_GV = tree.draft_probs[:-1].to(target_probs)
        stop_G1, scale_G1 = weigh(target_GV, draft_GV, log_ratios(target_GV, draft_GV, chosen_G1))

        def residual(row: int | Tensor) -> Tensor:
            place = torch.as_tensor(row, device=scale_G1.device)
            target_V, last = at_row(target_probs, place), len(draft_GV)
            draft_V = at_row(draft_GV, place.clamp(max=last - 1))
            weights_V = (at_row(scale_G1, place).to(target_V.dtype) * target_V - draft_V).clamp(min=0)
            return torch.where(place == last, target_V, normalised_or(weights_V, target_V))

        return OutcomeLaw(normalised(stop_G1), tree.depths, residual)

    rule.__name__, rule.__qualname__, rule.__doc__ = weigh.__name__, weigh.__qualname__, weigh.__doc__
    return rule


@_on_chains
def tokenwise(target_GV: Tensor, draft_GV: Tensor, log_ratio_G: Tensor) -> tuple[Tensor, Tensor]:
    """Accept each token by its own ratio. Source: Leviathan et al. 2023, Algorithm 1."""
    log_accept_G = log_ratio_G.clamp(max=0)
    zero = log_accept_G.new_zeros(1)
    log_reach_G1 = torch.cat([zero, log_accept_G.cumsum(0)])
    fail_G1 = torch.cat([-torch.expm1(log_accept_G), zero + 1])
    return log_reach_G1.exp() * fail_G1, torch.ones_like(fail_G1)


@_on_chains
def block(target_GV: Tensor, draft_GV: Tensor, log_ratio_G: Tensor) -> tuple[Tensor, Tensor]:
    """Accept the longest prefix the joint ratio supports. Source: Sun et al. 2024, block verification."""
    prefix_G1, _, test_G1 = block_tests(target_GV, draft_GV, log_ratio_G)
    return last_success(test_G1), prefix_G1


def block_tests(target_GV: Tensor, draft_GV: Tensor, log_ratio_G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute P_t [G + 1], S_t [G] and h_t [G + 1] of a chain whose token t is drawn from row t - 1 of the distributions."""
    log_prefix_G1 = log_prefix_weights(log_ratio_G)
    prefix_G1 = log_prefix_G1.exp()
    mass_G = excess_mass(target_GV, draft_GV, prefix_G1[:-1], torch.ones_like(log_ratio_G))
    total_G = mass_G - torch.expm1(log_prefix_G1[:-1])
    test_G = torch.where(total_G > 0, mass_G / total_G, 1.0)
    test_G[:1].fill_(1.0)
    return prefix_G1, mass_G, torch.cat([test_G, prefix_G1[-1:]])


def log_prefix_weights(log_ratio_G: Tensor) -> Tensor:
    """Compute log P_t [G + 1] of a chain with log ratios log ρ_t: P_t is P(τ >= t), whatever is drawn after token t."""
    log_joint_G1 = torch.cat([log_ratio_G.new_zeros(1), log_ratio_G.cumsum(0)])
    return log_joint_G1 - log_joint_G1.cummax(0).values


def last_success(test_G1: Tensor) -> Tensor:
    """Compute P(test t is the last to succeed) [G + 1] of independent tests; the first must be certain."""
    return first_success(test_G1.flip(0)).flip(0)


def log_ratios(target_GV: Tensor, draft_GV: Tensor, chosen_G1: Tensor) -> Tensor:
    """Compute log p(x_t) / q(x_t) [G] float64 of tokens ``chosen_G1`` [G, 1]; −inf where p or q is 0."""
    target_G = target_GV.gather(1, chosen_G1).squeeze(1).double()
    draft_G = draft_GV.gather(1, chosen_G1).squeeze(1).double()
    return torch.where((target_G > 0) & (draft_G > 0), target_G.log() - draft_G.log(), -torch.inf)
