"""Calibrate a stop model on what thresholds consume, the product of its chances along a draft, at every sampling setting.

    P̂ = σ(scale · logit + bias)        loss = - Σ_drafts w Σ_{j<=m} log P(token j survives or not | Π_{i<=j} P̂_i)

With m = 1 this is Platt scaling of single tokens, which leaves products too low: where a model sees too little of why tokens are
accepted, what it misses is alike along a draft. Shape suffixes: D drafts, G tokens of a draft.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from predictors.stopping.rule import StopCalibration
from predictors.training.stops.drafts import Drafts

LEAST_SCALE = 1e-3  # a scale that would turn the order around is held at almost none
LEAST = 1e-9


Said = Sequence[tuple[np.ndarray, Drafts]]  # logits [N, G] of a split's rows, and drafts from them


def fit_calibration(parts: Said) -> StopCalibration:
    """Scale and bias of least log loss over the drafts of all ``parts``.

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
    return product_calibration(*map(np.concatenate, zip(*columns, strict=True)))


def mixed(parts: Said) -> bool:
    """Whether some of the tokens survive and others do not."""
    return len(np.unique(np.concatenate([drafts.survives_DG[drafts.known_DG] for _, drafts in parts]))) == 2


def product_calibration(logits_DG: np.ndarray, survives_DG: np.ndarray, weight_DG: np.ndarray) -> StopCalibration:
    """Of drafts whose tokens survive or not, each with a weight."""

    def loss(parameters: np.ndarray) -> float:
        scale, bias = parameters
        log_DG = np.minimum(np.cumsum(-np.logaddexp(0, -(scale * logits_DG + bias)), axis=1), -LEAST)
        fates_DG = np.where(survives_DG, log_DG, np.log(-np.expm1(log_DG)))
        return float(-(weight_DG * fates_DG).sum() / weight_DG.sum())

    found = minimize(loss, (1.0, 0.0), method="L-BFGS-B", bounds=[(LEAST_SCALE, None), (None, None)])
    return StopCalibration(*(float(value) for value in found.x))


def calibrated(logits_NG: np.ndarray, calibrations: list[StopCalibration], setting_N: np.ndarray) -> np.ndarray:
    """Chances [N, G] of every row's tokens at its setting."""
    scale_S, bias_S = (np.array([getattr(one, name) for one in calibrations]) for name in ("scale", "bias"))
    return np.asarray(1 / (1 + np.exp(-(scale_S[setting_N, None] * logits_NG + bias_S[setting_N, None]))))
