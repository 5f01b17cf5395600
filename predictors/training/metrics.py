"""Quality of class probabilities on rows with natural class shares.

    AUC(c)   = P(score_c(x) > score_c(x')) + ½ P(=)        x of class c, x' of another; macro: mean over classes present
    F1(c)    = 2 TP / (2 TP + FP + FN);  macro: mean over all classes
    Brier    = mean Σ_c (P_c - [y = c])²                                      (multi-class, in [0, 2])
    ECE      = Σ_bins (n_b / n) |accuracy_b - confidence_b|                  15 equal bins of the top class's probability
    NLL      = mean -log P_y
    MAE      = mean |argmax_c P_c - y|                                       only where classes are lengths

Shape suffixes: N rows, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from predictors.network import CLASSES

BINS = 15
TINY = 1e-12


def evaluate(probabilities_NC: np.ndarray, labels_N: np.ndarray, classes: Sequence[str] = CLASSES) -> dict[str, Any]:
    """All metrics of ``classes`` (names) but the MAE; what is undefined (the AUC of a class that is absent) is ``None``."""
    predicted_N = probabilities_NC.argmax(axis=1)
    confusion = confusion_matrix(labels_N, predicted_N, len(classes))
    areas = [auc(probabilities_NC[:, c], labels_N == c) for c in range(len(classes))]
    return {
        "accuracy": float((predicted_N == labels_N).mean()),
        "macro_f1": macro_f1(confusion),
        "macro_auc": macro_auc(probabilities_NC, labels_N),
        "auc": dict(zip(classes, areas, strict=True)),
        "nll": nll(probabilities_NC, labels_N),
        "brier": brier(probabilities_NC, labels_N),
        "ece": expected_calibration_error(probabilities_NC, labels_N),
        "confusion": confusion.tolist(),
        "reliability": reliability(probabilities_NC, labels_N),
    }


def auc(scores_N: np.ndarray, positive_N: np.ndarray, weights_N: np.ndarray | None = None) -> float | None:
    """Area under the ROC curve, ties counted half; ``weights_N`` counts rows. ``None`` with one class only."""
    return _area(_ranks(scores_N), positive_N, np.ones(len(scores_N)) if weights_N is None else weights_N)


def macro_auc(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> float | None:
    """Mean one-versus-rest AUC over the classes that have rows."""
    return MacroAuc(probabilities_NC, labels_N)(np.ones(len(labels_N)))


class MacroAuc:
    """`macro_auc` of the same rows at any weights: their scores are sorted once."""

    def __init__(self, probabilities_NC: np.ndarray, labels_N: np.ndarray) -> None:
        self._classes = [(_ranks(scores_N), labels_N == c) for c, scores_N in enumerate(probabilities_NC.T)]

    def __call__(self, weights_N: np.ndarray) -> float | None:
        areas = [_area(*ranked, weights_N) for ranked in self._classes]
        known = [area for area in areas if area is not None]
        return float(np.mean(known)) if known else None


def _ranks(scores_N: np.ndarray) -> np.ndarray:
    """The place of every score among the different ones, ascending."""
    return np.unique(scores_N, return_inverse=True)[1]


def _area(rank_N: np.ndarray, positive_N: np.ndarray, weights_N: np.ndarray) -> float | None:
    positives = np.bincount(rank_N, weights_N * positive_N)
    negatives = np.bincount(rank_N, weights_N * ~positive_N)
    total = positives.sum() * negatives.sum()
    if not total:
        return None
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / total)


def confusion_matrix(labels_N: np.ndarray, predicted_N: np.ndarray, size: int = len(CLASSES)) -> np.ndarray:
    """Counts [C, C] of ``size`` classes: rows are true classes, columns predicted ones."""
    return np.bincount(labels_N * size + predicted_N, minlength=size * size).reshape(size, size)


def macro_f1(confusion: np.ndarray) -> float:
    """Mean F1 over classes; a class that is neither present nor predicted counts 0."""
    hits = np.diag(confusion)
    denominator = confusion.sum(axis=0) + confusion.sum(axis=1)
    return float(np.mean(2 * hits / np.maximum(denominator, 1)))


def nll(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Mean negative log likelihood in nats."""
    return float(-np.log(np.maximum(probabilities_NC[np.arange(len(labels_N)), labels_N], TINY)).mean())


def mean_absolute_error(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Mean distance, in tokens, of the likeliest length from the true one."""
    return float(np.abs(probabilities_NC.argmax(axis=1) - labels_N).mean())


def brier(probabilities_NC: np.ndarray, labels_N: np.ndarray) -> float:
    """Multi-class Brier score."""
    return float(np.square(probabilities_NC - np.eye(probabilities_NC.shape[1])[labels_N]).sum(axis=1).mean())


def reliability(probabilities_NC: np.ndarray, labels_N: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """Non-empty bins of the top class's probability: lower edge, rows, mean confidence, accuracy."""
    confidence_N = probabilities_NC.max(axis=1)
    correct_N = probabilities_NC.argmax(axis=1) == labels_N
    bin_N = np.minimum((confidence_N * bins).astype(int), bins - 1)
    return [
        {
            "from": b / bins,
            "rows": int((bin_N == b).sum()),
            "confidence": float(confidence_N[bin_N == b].mean()),
            "accuracy": float(correct_N[bin_N == b].mean()),
        }
        for b in np.unique(bin_N).tolist()
    ]


def expected_calibration_error(probabilities_NC: np.ndarray, labels_N: np.ndarray, bins: int = BINS) -> float:
    """Mean gap between confidence and accuracy over bins, weighted by rows."""
    rows = reliability(probabilities_NC, labels_N, bins)
    return sum(row["rows"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / len(labels_N)


def binary(chances_N: np.ndarray, accepted_N: np.ndarray, weight_N: np.ndarray) -> dict[str, Any]:
    """Quality of chances of one event: ECE over equal bins of the chance."""
    bin_N = np.minimum((chances_N * BINS).astype(int), BINS - 1)
    total = float(weight_N.sum())
    gaps = np.abs(np.bincount(bin_N, weight_N * (accepted_N - chances_N), minlength=BINS))
    return {
        "tokens": round(total),
        "accepted": float(weight_N @ accepted_N / total),
        "auroc": auc(chances_N, accepted_N, weight_N),
        "brier": float(weight_N @ (chances_N - accepted_N) ** 2 / total),
        "ece": float(gaps.sum() / total),
    }
