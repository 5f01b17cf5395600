"""What a head must beat: predictors of the same classes that know almost nothing, fitted on the same training rows.

majority          the training shares, for every row
previous_label    the training shares among rows whose previous round had the same class (add-one smoothed)
draft_confidence  multinomial logistic regression on the first draft law's confidence and entropy
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from predictors.training.label_table import LabelTable
from predictors.training.target import Target


@dataclass(frozen=True)
class Baseline:
    """``predict`` gives probabilities [N, L]; ``reads_first_law`` says whether that needs a draft pass."""

    predict: Callable[[LabelTable], np.ndarray]
    reads_first_law: bool


def fit_baselines(train: LabelTable, target: Target) -> dict[str, Baseline]:
    """Baselines by name, fitted on training rows."""
    return {
        "majority": Baseline(_majority(train, target), False),
        "previous_label": Baseline(_previous_label(train, target), False),
        "draft_confidence": Baseline(_draft_confidence(train, target), True),
    }


def _majority(train: LabelTable, target: Target) -> Callable[[LabelTable], np.ndarray]:
    shares = np.bincount(target.labels(train).numpy(), minlength=len(target.classes)) / len(train)
    return lambda table: np.tile(shares, (len(table), 1))


def _previous_label(train: LabelTable, target: Target) -> Callable[[LabelTable], np.ndarray]:
    counts = np.ones((len(target.classes) + 1, len(target.classes)))  # the last row: a request's first round
    np.add.at(counts, (_previous(train, target), target.labels(train).numpy()), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return lambda table: shares[_previous(table, target)]


def _previous(table: LabelTable, target: Target) -> np.ndarray:
    return np.where(table.previous_drafted < 0, len(target.classes), target.of(table.previous_accepted))


def _draft_confidence(train: LabelTable, target: Target) -> Callable[[LabelTable], np.ndarray]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(_first_law(train), target.labels(train).numpy())
    return lambda table: model.predict_proba(_first_law(table))


def _first_law(table: LabelTable) -> np.ndarray:
    return np.stack([table.confidence_NG[:, 0], table.entropy_NG[:, 0]], axis=1).astype(np.float64)
