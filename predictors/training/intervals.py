"""Intervals of statistics over documents, as rows of one document are not independent.

Of a ratio of sums, by delete-one-document jackknife

    variance = (D - 1) / D Σ_d (θ_(d) - mean)²,        interval = θ ± t_{.975, D-1} error

Source: Shao and Tu, The Jackknife and Bootstrap, 1995, section 2.1. Of others by percentile bootstrap: documents are what is
drawn. Shape suffixes: N, X rows, D documents, V sums.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import t as student

LEVEL = 0.95


def log_gain(ours_2X: np.ndarray, theirs_2X: np.ndarray, document_X: np.ndarray) -> dict[str, float | None]:
    """Compute the gain of `ours` (tokens, seconds) over `theirs` in tokens per second, with its interval, by logarithms."""

    def gained(sums_DV: np.ndarray) -> np.ndarray:
        tokens, seconds, other_tokens, other_seconds = np.log(sums_DV).T
        return np.asarray(tokens - seconds - other_tokens + other_seconds)

    made = jackknife(np.concatenate([ours_2X, theirs_2X]).T, document_X, gained)
    return {name: None if value is None else math.expm1(value) for name, value in made.items()}


def jackknife(
    columns_XV: np.ndarray, document_X: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]
) -> dict[str, float | None]:
    """Compute ``statistic`` (of sums [D, V] to [D]) of the columns' sums, with its 95 % interval; none of one document."""
    names, document_X = np.unique(document_X, return_inverse=True)
    count = len(names)
    sums_DV = np.stack([np.bincount(document_X, values, count) for values in columns_XV.T], axis=1)
    whole_1V = sums_DV.sum(axis=0, keepdims=True)
    value = float(statistic(whole_1V)[0])
    if count < 2:
        return {"value": value, "low": None, "high": None}
    without_D = statistic(whole_1V - sums_DV)
    error = math.sqrt((count - 1) / count * np.square(without_D - without_D.mean()).sum())
    reach = float(student.ppf((1 + LEVEL) / 2, count - 1)) * error
    return {"value": value, "low": value - reach, "high": value + reach}


class DocumentBootstrap:
    """Bootstrap over documents: row weights of replicates, by how often each row's document was drawn."""

    def __init__(self, documents: np.ndarray, replicates: int, seed: int) -> None:
        names, self.document_N = np.unique(documents, return_inverse=True)
        draws = np.random.default_rng(seed).integers(len(names), size=(replicates, len(names)))
        self.counts = np.stack([np.bincount(row, minlength=len(names)) for row in draws])

    def ratio(self, numerator_N: np.ndarray, denominator_N: np.ndarray) -> np.ndarray:
        """Compute Σ numerator / Σ denominator in every replicate."""
        sums = [np.bincount(self.document_N, values, self.counts.shape[1]) for values in (numerator_N, denominator_N)]
        numerator, denominator = (self.counts @ np.stack(sums, axis=1)).T
        return numerator / denominator

    def each(self, statistic: Callable[[np.ndarray], float | None]) -> np.ndarray:
        """Compute ``statistic(row weights)`` in every replicate where it is defined."""
        values = [statistic(counts[self.document_N].astype(float)) for counts in self.counts]
        return np.array([value for value in values if value is not None])


def percentiles(value: float | None, replicates: np.ndarray) -> dict[str, float | None]:
    """Return ``value`` with the 95 % percentile interval of its replicates."""
    if not len(replicates):
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": value, "low": float(low), "high": float(high)}
