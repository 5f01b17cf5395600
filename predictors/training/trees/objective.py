"""What a selector is trained for. Two objectives:

``tokens``: expected tokens of every action, with an error in units of its mean over training roots, Ē_a:

    loss = mean_{i, a} ((exp g_a(x_i) - E_a(x_i)) / Ē_a)²

``throughput`` (paper 004, Eqs. 4, 5 and 12, in log form): tokens per second of a policy against the static choice, and not losing
much anywhere:

    π(a | x) = softmax_a β (g_a(x) - log T_a(x))                       β = 20: 5 % more tokens per second are e times as likely
    TPS_π(x) = Σ_a π(a|x) E_a(x) / Σ_a π(a|x) T_a(x)                   E: expected tokens of a step, T: its seconds
    s_i = log TPS_π(x_i) - log (E_b / T_b)(x_i)                        b: the static action of the row's sampling setting
    loss = -(1/N) Σ_i s_i + λ (1/|I|) Σ_{i in I} [-s_i]_+              I: the ⌈α N⌉ largest [-s_i]_+ of the batch

I counts as constant. d s_i / d logit_a = π_a (E_a / E_π - T_a / T_π). A factor of all E of a root does not matter to it. The
first learns from every action of every root, the second from those that the policy takes (docs/tried.md has both). Source:
specification of verification, section 8. Shape suffixes: B rows, A actions.
"""

import math

import torch
from torch import Tensor

from predictors.selection.rule import RATIO, SURPLUS

SHARPNESS = 20.0
TOKENS, THROUGHPUT = OBJECTIVES = ("tokens", "throughput")
SCORED = {TOKENS: (SURPLUS, RATIO), THROUGHPUT: (RATIO,)}  # what the outputs of either can be scored by


def token_error(logs_BA: Tensor, efficiency_BA: Tensor, mean_A: Tensor) -> Tensor:
    """The loss of expected tokens."""
    return ((logs_BA.exp() - efficiency_BA) / mean_A).square().mean()


def log_gain(logits_BA: Tensor, efficiency_BA: Tensor, seconds_BA: Tensor, static_B: Tensor) -> Tensor:
    """s [B] of the policy softmax(``logits_BA``) over the static actions ``static_B``."""
    policy_BA = torch.softmax(logits_BA, dim=1)
    policy_B = (policy_BA * efficiency_BA).sum(1).log() - (policy_BA * seconds_BA).sum(1).log()
    static_B1 = static_B.unsqueeze(1)
    return policy_B - (efficiency_BA.gather(1, static_B1) / seconds_BA.gather(1, static_B1)).log().squeeze(1)


def objective(gain_B: Tensor, penalty: float, worst: float) -> Tensor:
    """The loss of gains ``s``: λ is ``penalty``, α is ``worst``.

    Examples
    --------
    >>> round(float(objective(torch.tensor([0.3, -0.1, -0.2, 0.0]), penalty=2.0, worst=0.5)), 6)
    0.3
    """
    regret_B = (-gain_B).clamp(min=0)
    worst_I = regret_B.topk(math.ceil(worst * len(gain_B))).values
    return -gain_B.mean() + penalty * worst_I.mean()
