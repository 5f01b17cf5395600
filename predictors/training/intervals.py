"""How sure a ratio of sums over documents is: delete-one-document jackknife, as rows of one document are not independent.

    variance = (D - 1) / D Σ_d (θ_(d) - mean)²,        interval = θ ± t_{.975, D-1} error

Source: Shao and Tu, The Jackknife and Bootstrap, 1995, section 2.1. Shape suffixes: X rows, D documents.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import t as student

LEVEL = 0.95


def log_gain(ours_2X: np.ndarray, theirs_2X: np.ndarray, document_X: np.ndarray) -> dict[str, float | None]:
    """What `ours` (tokens, seconds) gains in tokens per second over `theirs`, with its interval, by way of logarithms."""

    def gained(sums_DV: np.ndarray) -> np.ndarray:
        tokens, seconds, other_tokens, other_seconds = np.log(sums_DV).T
        return np.asarray(tokens - seconds - other_tokens + other_seconds)

    made = jackknife(np.concatenate([ours_2X, theirs_2X]).T, document_X, gained)
    return {name: None if value is None else math.expm1(value) for name, value in made.items()}


def jackknife(
    columns_XV: np.ndarray, document_X: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> dict[str, float | None]:
    """``statistic`` (of sums [D, V] to [D]) of the columns' sums, with its 95 % interval; none of one document."""
    names, document_X = np.unique(document_X, return_inverse=True)
    sums_DV = np.stack([np.bincount(document_X, values, len(names)) for values in columns_XV.T], axis=1)
    whole_1V = sums_DV.sum(axis=0, keepdims=True)
    return interval(float(statistic(whole_1V)[0]), statistic(whole_1V - sums_DV) if len(names) > 1 else np.array([]))


def interval(value: float, without_D: np.ndarray) -> dict[str, float | None]:
    """``value`` with its 95 % interval, by what it is without each document."""
    count = len(without_D)
    if count < 2:
        return {"value": value, "low": None, "high": None}
    error = math.sqrt((count - 1) / count * np.square(without_D - without_D.mean()).sum())
    reach = float(student.ppf((1 + LEVEL) / 2, count - 1)) * error
    return {"value": value, "low": value - reach, "high": value + reach}
