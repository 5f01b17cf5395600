"""Calibrate a stop model on what thresholds consume, the product of its chances along a draft, at every sampling setting.

    P̂_i = σ(scale · logit_i + bias + rise · i)        loss = - Σ_drafts w Σ_{j<=m} log P(token j survives or not | Π_{i<=j} P̂_i)
    then bias and rise          least squares Σ_{j<=m} (mean Π_{i<=j} P̂_i - share of drafts whose token j survives)²

With m = 1 the loss is that of Platt scaling of single tokens, which leaves products too low: where a model sees too little of why
tokens are accepted, what it misses is alike along a draft. The scale is the loss's own. Bias and rise are not, as forecasts are
means: the loss leaves mean products up to .012 off on its own drafts (six tokens, 29976c7). Without ``rise`` few tokens are
balanced against many. Shape suffixes: D drafts, G tokens of a draft.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, minimize
from scipy.special import expit

from predictors.stopping.rule import RisingCalibration
from predictors.training.stops.drafts import Drafts

LEAST_SCALE = 1e-3  # a scale that would turn the order around is held at almost none
LEAST = 1e-9


Said = Sequence[tuple[np.ndarray, Drafts]]  # logits [N, G] of a split's rows, and drafts from them


def fit_calibration(parts: Said) -> RisingCalibration:
    """Of least log loss over the drafts of all ``parts``.

    Raises
    ------
    ValueError
        If all tokens have one fate.
    """
    if not mixed(parts):
        raise ValueError("every drafted token has one fate, so nothing can be calibrated. Collect more prompts.")
    columns = [
        (drafts.said(logits_NG, 0.0), drafts.survives_DG, drafts.weight_D[:, None] * drafts.known_DG)
        for logits_NG, drafts in parts
    ]
    return RisingCalibration(*product_calibration(*map(np.concatenate, zip(*columns, strict=True))))


def mixed(parts: Said) -> bool:
    """Whether some of the tokens survive and others do not."""
    return len(np.unique(np.concatenate([drafts.survives_DG[drafts.known_DG] for _, drafts in parts]))) == 2


def product_calibration(
    logits_DG: np.ndarray, survives_DG: np.ndarray, weight_DG: np.ndarray, *, rises: bool = True
) -> tuple[float, float, float]:
    """Scale, bias and rise for drafts whose tokens survive or not, each with a weight; unless it ``rises``, a rise of 0."""
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


def calibrated(
    logits: np.ndarray, drafted: ArrayLike, scale: ArrayLike, bias: ArrayLike, rise: ArrayLike
) -> np.ndarray:
    """Chances of logits, each behind so many ``drafted`` tokens and with its own calibration; all of one shape when broadcast."""
    return np.asarray(expit(np.multiply(scale, logits) + np.asarray(bias) + np.multiply(rise, drafted)))
