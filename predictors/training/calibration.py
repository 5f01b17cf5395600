"""Calibrations of chances, and how good chances are on rows with natural class shares.

Class probabilities by temperature scaling (Guo et al. 2017), with a fixed prior correction b (`predictors.head`):

    t = argmin mean -log softmax_y(l / t + b)

In β = 1 / t the loss is convex, with derivative  mean Σ_c P_c l_c - l_y,  so bisection on its sign finds the minimum.

Chances of tokens by what thresholds consume, their products along a draft of m tokens:

    P̂_i = σ(scale · logit_i + bias + rise · i)        loss = - Σ_drafts w Σ_{j<=m} log P(token j survives or not | Π_{i<=j} P̂_i)
    then bias and rise          least squares Σ_{j<=m} (mean Π_{i<=j} P̂_i - share of drafts whose token j survives)²

With m = 1 the loss is that of Platt scaling of single tokens, which leaves products too low: what a model misses is alike along a
draft. One temperature a position (sequential temperature scaling, as DSpark's scheduler in SGLang reads it):

    t_i = argmin - Σ_drafts log P(token i survives or not | S_{i-1} σ(logit_i / t)),        S_i = Π_{j<=i} σ(logit_j / t_j)

The metrics:

    AUC(c)   = P(score_c(x) > score_c(x')) + ½ P(=)        x of class c, x' of another; macro: mean over classes present
    F1(c)    = 2 TP / (2 TP + FP + FN);  macro: mean over all classes, 0 of one neither present nor predicted
    Brier    = mean Σ_c (P_c - [y = c])²                                      (multi-class, in [0, 2])
    ECE      = Σ_bins (n_b / n) |accuracy_b - confidence_b|                  15 equal bins of the top class's probability
    NLL      = mean -log P_y
    MAE      = mean |argmax_c P_c - y|                                       only where classes are lengths

Shape suffixes: N rows, C classes, D drafts, G tokens of a draft.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares, minimize
from scipy.special import expit
from torch import Tensor

from predictors.head import CLASSES, Calibration

LEAST_SCALE = 1e-3  # a scale that would turn the order around is held at almost none
LEAST = 1e-9
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.02, 50.0
STEPS = 60
BINS = 15
TINY = 1e-12
TEMPERATURES = np.geomspace(0.1, 10, 81)


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


def sequential_temperatures(logits_DG: np.ndarray, survives_DG: np.ndarray) -> list[float]:
    """Fit a temperature of every position, one after the other, to drafts whose tokens survive or not."""
    found: list[float] = []
    survival_D = np.ones(len(logits_DG))
    for logit_D, survives_D in zip(logits_DG.T, survives_DG.T, strict=True):
        chance_TD = survival_D * expit(logit_D / TEMPERATURES[:, None])
        right_TD = np.where(survives_D, chance_TD, 1 - chance_TD)
        best = np.log(np.maximum(right_TD, TINY)).sum(axis=1).argmax()
        found.append(float(TEMPERATURES[best]))
        survival_D = chance_TD[best]
    return found


def evaluate(probabilities_NC: np.ndarray, labels_N: np.ndarray, classes: Sequence[str] = CLASSES) -> dict[str, Any]:
    """Compute all metrics of ``classes`` (names) but the MAE; an undefined one (the AUC of an absent class) is ``None``."""
    rows, size, area = len(labels_N), len(classes), MacroAuc(probabilities_NC, labels_N)
    predicted_N = probabilities_NC.argmax(axis=1)
    confusion_CC = np.bincount(labels_N * size + predicted_N, minlength=size * size).reshape(size, size)  # rows: true
    f1_C = 2 * np.diag(confusion_CC) / np.maximum(confusion_CC.sum(axis=0) + confusion_CC.sum(axis=1), 1)
    true_N = np.maximum(probabilities_NC[np.arange(rows), labels_N], TINY)
    bins = reliability(probabilities_NC, labels_N)
    return {
        "accuracy": float((predicted_N == labels_N).mean()),
        "macro_f1": float(np.mean(f1_C)),
        "macro_auc": area(),
        "auc": dict(zip(classes, area.of_classes(), strict=True)),
        "nll": float(-np.log(true_N).mean()),
        "brier": float(np.square(probabilities_NC - np.eye(size)[labels_N]).sum(axis=1).mean()),
        "ece": sum(one["rows"] * abs(one["accuracy"] - one["confidence"]) for one in bins) / rows,
        "confusion": confusion_CC.tolist(),
        "reliability": bins,
    }


def auc(scores_N: np.ndarray, positive_N: np.ndarray, weights_N: np.ndarray) -> float | None:
    """Compute the area under the ROC curve, ties counted half; ``weights_N`` counts rows. ``None`` with one class only."""
    return _area(_ranks(scores_N), positive_N, weights_N)


class MacroAuc:
    """Macro AUC of the same rows at any weights, by default one each: their scores are sorted once."""

    def __init__(self, probabilities_NC: np.ndarray, labels_N: np.ndarray) -> None:
        self._classes = [(_ranks(scores_N), labels_N == c) for c, scores_N in enumerate(probabilities_NC.T)]
        self._ones_N = np.ones(len(labels_N))

    def of_classes(self, weights_N: np.ndarray | None = None) -> list[float | None]:
        """Compute the AUC of every class; ``None`` where it, or every other, is absent."""
        return [_area(*ranked, self._ones_N if weights_N is None else weights_N) for ranked in self._classes]

    def __call__(self, weights_N: np.ndarray | None = None) -> float | None:
        known = [area for area in self.of_classes(weights_N) if area is not None]
        return float(np.mean(known)) if known else None


def _ranks(scores_N: np.ndarray) -> np.ndarray:
    """Rank every score among the different ones, ascending."""
    return np.unique(scores_N, return_inverse=True)[1]


def _area(rank_N: np.ndarray, positive_N: np.ndarray, weights_N: np.ndarray) -> float | None:
    positives = np.bincount(rank_N, weights_N * positive_N)
    negatives = np.bincount(rank_N, weights_N * ~positive_N)
    total = positives.sum() * negatives.sum()
    if not total:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / total)


def mean_absolute_error(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Compute the mean distance, in tokens, of the likeliest length from the true one."""
    return float(np.abs(probabilities_NC.argmax(axis=1) - labels_N).mean())


def reliability(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> list[dict[str, float]]:
    """Bin rows by the top class's probability: lower edge, rows, mean confidence and accuracy of bins that are not empty."""
    confidence_N = probabilities_NC.max(axis=1)
    correct_N = probabilities_NC.argmax(axis=1) == labels_N
    bin_N = np.minimum((confidence_N * BINS).astype(int), BINS - 1)
    return [
        {
            "from": b / BINS,
            "rows": int((bin_N == b).sum()),
            "confidence": float(confidence_N[bin_N == b].mean()),
            "accuracy": float(correct_N[bin_N == b].mean()),
        }
        for b in np.unique(bin_N).tolist()
    ]


def binary(chances_N: np.ndarray, accepted_N: np.ndarray) -> dict[str, Any]:
    """Score chances of one event: ECE over equal bins of the chance."""
    bin_N = np.minimum((chances_N * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bin_N, accepted_N - chances_N, minlength=BINS))
    return {
        "tokens": len(chances_N),
        "accepted": float(accepted_N.mean()),
        "auroc": auc(chances_N, accepted_N, np.ones(len(chances_N))),
        "brier": float(np.mean((chances_N - accepted_N) ** 2)),
        "ece": float(gaps.sum() / len(chances_N)),
    }


def along_drafts(chances_NG: np.ndarray, survives_NG: np.ndarray, whole_N: np.ndarray) -> dict[str, Any]:
    """Compare mean Π P̂ along ``whole`` drafts (predicted) with P(N >= n) (observed), empty for none; and count them."""
    means = {"predicted": np.cumprod(chances_NG[whole_N], axis=1), "observed": survives_NG[whole_N]}
    bias = {name: values.mean(axis=0).tolist() if whole_N.any() else [] for name, values in means.items()}
    return {"product_bias": bias, "rounds": int(whole_N.sum())}
