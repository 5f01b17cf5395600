"""Temperature scaling on natural-prior rows (Guo et al. 2017), with a fixed prior correction b (`predictors.decision_rule`).

    t = argmin mean -log softmax_y(l / t + b)

In β = 1 / t the loss is convex, with derivative  mean Σ_c P_c l_c - l_y,  so bisection on its sign finds the minimum.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from predictors.decision_rule import Calibration

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.02, 50.0
STEPS = 60


def fit_temperature(logits: Tensor, labels: Tensor, bias: Tensor) -> float:
    """The temperature of least NLL on ``logits`` [N, 3] and ``labels`` [N], within [0.02, 50]."""
    logits, bias = logits.double(), bias.double()
    true_logit = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    for _ in range(STEPS):
        middle = (low + high) / 2
        probabilities = torch.softmax(middle * logits + bias, dim=1)
        slope = ((probabilities * logits).sum(dim=1) - true_logit).mean()
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 2 / (low + high)


def fit_calibration(logits: Tensor, labels: Tensor, natural: Sequence[float], training: Sequence[float]) -> Calibration:
    """Bias from the class shares before balancing and after it, then the temperature that goes with it."""
    bias = prior_shift(natural, training)
    return Calibration(fit_temperature(logits, labels, bias), tuple(bias.tolist()))


def prior_shift(natural: Sequence[float], training: Sequence[float]) -> Tensor:
    """b = log natural share - log training share: what balancing must be given back."""
    return torch.log(torch.tensor(natural)) - torch.log(torch.tensor(training))
