"""Calibrations: of class probabilities by temperature, and of chances of tokens by what thresholds consume, their product.

Temperature scaling on natural-prior rows (Guo et al. 2017), with a fixed prior correction b (`predictors.head`):

    t = argmin mean -log softmax_y(l / t + b)

In β = 1 / t the loss is convex, with derivative  mean Σ_c P_c l_c - l_y,  so bisection on its sign finds the minimum.

Products of chances along a draft of m tokens:

    P̂_i = σ(scale · logit_i + bias + rise · i)        loss = - Σ_drafts w Σ_{j<=m} log P(token j survives or not | Π_{i<=j} P̂_i)
    then bias and rise          least squares Σ_{j<=m} (mean Π_{i<=j} P̂_i - share of drafts whose token j survives)²

With m = 1 the loss is that of Platt scaling of single tokens, which leaves products too low: what a model misses is alike along a
draft. Shape suffixes: D drafts, G tokens of a draft.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import least_squares, minimize
from torch import Tensor

from predictors.head import Calibration

LEAST_SCALE = 1e-3  # a scale that would turn the order around is held at almost none
LEAST = 1e-9
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.02, 50.0
STEPS = 60


def fit_temperature(logits: Tensor, labels: Tensor, bias: Tensor) -> float:
    """Find the temperature of least NLL on ``logits`` [N, 3] and ``labels`` [N], within [0.02, 50]."""
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
    """Fit a head's calibration: the bias from class shares before and after balancing, then the temperature."""
    bias = prior_shift(natural, training)
    return Calibration(fit_temperature(logits, labels, bias), tuple(bias.tolist()))


def prior_shift(natural: Sequence[float], training: Sequence[float]) -> Tensor:
    """Compute b = log natural share - log training share: what balancing must be given back."""
    return torch.log(torch.tensor(natural)) - torch.log(torch.tensor(training))


def product_calibration(
    logits_DG: np.ndarray, survives_DG: np.ndarray, weight_DG: np.ndarray, *, rises: bool = True
) -> tuple[float, float, float]:
    """Fit scale, bias and rise to drafts whose tokens survive or not, each with a weight; unless it ``rises``, a rise of 0."""
    drafted_G = np.arange(logits_DG.shape[1])

    def log_products(scale: float, bias: float, rise: float = 0.0) -> np.ndarray:
        logs_DG = -np.logaddexp(0, -(scale * logits_DG + bias + rise * drafted_G))
        return np.minimum(np.cumsum(logs_DG, axis=1), -LEAST)

    def loss(parameters: np.ndarray) -> float:
        log_DG = log_products(*parameters)
        fates_DG = np.where(survives_DG, log_DG, np.log(-np.expm1(log_DG)))
        return float(-(weight_DG * fates_DG).sum() / weight_DG.sum())

    def gaps(parameters: np.ndarray) -> np.ndarray:
        gaps_DG = weight_DG * (np.exp(log_products(scale, *parameters)) - survives_DG)
        return np.asarray(gaps_DG.sum(axis=0) / np.maximum(weight_DG.sum(axis=0), LEAST))

    free = (None, None)
    found = minimize(
        loss, (1.0, 0.0, 0.0), method="L-BFGS-B", bounds=[(LEAST_SCALE, None), free, free if rises else (0.0, 0.0)]
    )
    scale, bias, rise = (float(value) for value in found.x)
    moved = least_squares(gaps, (bias, rise) if rises else (bias,)).x.tolist()
    return scale, moved[0], moved[1] if rises else 0.0
