"""Percentile bootstrap over documents: rows of one document are not independent, so documents are what is drawn."""

from collections.abc import Callable

import numpy as np

LEVEL = 0.95


class DocumentBootstrap:
    """Row weights of replicates: how often each row's document was drawn.

    Parameters
    ----------
    documents
        The document of each row.
    replicates, seed
        Number of replicates, and the seed they follow from.
    """

    def __init__(self, documents: np.ndarray, replicates: int, seed: int) -> None:
        names, self.document_N = np.unique(documents, return_inverse=True)
        draws = np.random.default_rng(seed).integers(len(names), size=(replicates, len(names)))
        self.counts = np.stack([np.bincount(row, minlength=len(names)) for row in draws])

    def ratio(self, numerator_N: np.ndarray, denominator_N: np.ndarray) -> np.ndarray:
        """Σ numerator / Σ denominator in every replicate."""
        sums = [np.bincount(self.document_N, values, self.counts.shape[1]) for values in (numerator_N, denominator_N)]
        numerator, denominator = (self.counts @ np.stack(sums, axis=1)).T
        return numerator / denominator

    def each(self, statistic: Callable[[np.ndarray], float | None]) -> np.ndarray:
        """``statistic(row weights)`` in every replicate where it is defined."""
        values = [statistic(counts[self.document_N].astype(float)) for counts in self.counts]
        return np.array([value for value in values if value is not None])


def interval(value: float | None, replicates: np.ndarray) -> dict[str, float | None]:
    """``value`` with the 95 % percentile interval of its replicates."""
    if not len(replicates):
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": value, "low": float(low), "high": float(high)}
