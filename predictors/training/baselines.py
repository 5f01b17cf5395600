"""What a head must beat: predictors of the same three classes that know almost nothing, fitted on the same training rows.

majority          the training shares, for every row
previous_label    the training shares among rows with the same previous-round label (add-one smoothed)
draft_confidence  multinomial logistic regression on the first draft law's confidence and entropy
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from predictors.network import CLASSES
from predictors.training.label_table import LabelTable
from predictors.training.labels import label_of

FIRST_ROUND = len(CLASSES)  # the previous "label" of a request's first round


@dataclass(frozen=True)
class Baseline:
    """``predict`` gives probabilities [N, 3]; ``reads_first_law`` says whether that needs a draft pass."""

    predict: Callable[[LabelTable], np.ndarray]
    reads_first_law: bool


def fit_baselines(train: LabelTable) -> dict[str, Baseline]:
    """Baselines by name, fitted on training rows."""
    return {
        "majority": Baseline(_majority(train), False),
        "previous_label": Baseline(_previous_label(train), False),
        "draft_confidence": Baseline(_draft_confidence(train), True),
    }


def _majority(train: LabelTable) -> Callable[[LabelTable], np.ndarray]:
    shares = np.bincount(train.label, minlength=len(CLASSES)) / len(train)
    return lambda table: np.tile(shares, (len(table), 1))


def _previous_label(train: LabelTable) -> Callable[[LabelTable], np.ndarray]:
    counts = np.ones((FIRST_ROUND + 1, len(CLASSES)))
    np.add.at(counts, (_previous(train), train.label), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return lambda table: shares[_previous(table)]


def _previous(table: LabelTable) -> np.ndarray:
    labels = label_of(table.previous_accepted, table.metadata.gamma)
    return np.where(table.previous_drafted < 0, FIRST_ROUND, labels)


def _draft_confidence(train: LabelTable) -> Callable[[LabelTable], np.ndarray]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(_first_law(train), train.label)
    return lambda table: model.predict_proba(_first_law(table))


def _first_law(table: LabelTable) -> np.ndarray:
    return np.stack([table.confidence_NG[:, 0], table.entropy_NG[:, 0]], axis=1).astype(np.float64)
