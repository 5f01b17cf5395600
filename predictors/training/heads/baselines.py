"""What a head must beat: predictors of the same classes that know almost nothing, fitted on the same training rows.

majority          the training shares, for every row
previous_label    the training shares among rows whose previous round had the same class (add-one smoothed)
draft_confidence  multinomial logistic regression on the first draft distribution's confidence and entropy
"""

from collections.abc import Callable

import numpy as np

from predictors.training.heads.roots import Rows
from predictors.training.heads.target import Target

Baseline = Callable[[Rows], np.ndarray]  # probabilities [P, C] of rows


def fit_baselines(train: Rows, target: Target) -> dict[str, Baseline]:
    """Baselines by name, fitted on training rows."""
    return {
        "majority": _majority(train, target),
        "previous_label": _previous_label(train, target),
        "draft_confidence": _draft_confidence(train, target),
    }


def _majority(train: Rows, target: Target) -> Baseline:
    shares = np.bincount(train.labels(target), minlength=len(target.classes)) / len(train)
    return lambda rows: np.tile(shares, (len(rows), 1))


def _previous_label(train: Rows, target: Target) -> Baseline:
    size = len(target.classes)
    counts = np.ones((size + 1, size))  # the last row: nothing is known of the round before
    np.add.at(counts, (_previous(train, target), train.labels(target)), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return lambda rows: shares[_previous(rows, target)]


def _previous(rows: Rows, target: Target) -> np.ndarray:
    return np.where(rows.past_P == 0, len(target.classes), target.of(rows.past_P - 1))


def _draft_confidence(train: Rows, target: Target) -> Baseline:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = train.labels(target)
    if len(np.unique(labels)) == 1:  # nothing to tell apart: a draft that is never, or always, accepted
        return _majority(train, target)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(_first(train), labels)
    return lambda rows: _spread(model.predict_proba(_first(rows)), model.classes_, len(target.classes))


def _spread(known_PC: np.ndarray, classes: np.ndarray, count: int) -> np.ndarray:
    """Probabilities of all classes, 0 of those that had no training row."""
    probabilities_PC = np.zeros((len(known_PC), count))
    probabilities_PC[:, classes] = known_PC
    return probabilities_PC


def _first(rows: Rows) -> np.ndarray:
    roots = rows.roots
    return np.stack([roots.confidence_R[rows.row_P], roots.entropy_R[rows.row_P]], axis=1).astype(np.float64)
