"""Quality of class probabilities on rows with natural class shares.

    AUC(c)   = P(score_c(x) > score_c(x')) + ½ P(=)        x of class c, x' of another; macro: mean over classes present
    F1(c)    = 2 TP / (2 TP + FP + FN);  macro: mean over all classes, 0 of one neither present nor predicted
    Brier    = mean Σ_c (P_c - [y = c])²                                      (multi-class, in [0, 2])
    ECE      = Σ_bins (n_b / n) |accuracy_b - confidence_b|                  15 equal bins of the top class's probability
    NLL      = mean -log P_y
    MAE      = mean |argmax_c P_c - y|                                       only where classes are lengths

Shape suffixes: N rows, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors.head import CLASSES

BINS = 15
TINY = 1e-12


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
