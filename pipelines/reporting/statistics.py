"""Paired bootstrap over documents, for times of arms that decoded the same prompts.

    rate            Σ tokens / Σ seconds
    rate ratio      rate of an arm / rate of a baseline, both over the same resampled documents (the headline figure)
    rate difference rate of an arm - rate of a baseline, likewise (for shares, which may be 0)
    share between   (rate of an arm - low rate) / (high rate - low rate), likewise
    median ratio    weighted median over prompts of each prompt's own rate ratio (robust against a few slow runs)

Prompts of one document are not independent, so documents are what is drawn. Items are prompts (at a temperature), in one order
for all arms: that is the pairing.
"""

from collections.abc import Callable, Sequence
from operator import sub, truediv
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from predictors.training.bootstrap import DocumentBootstrap, interval

Interval = dict[str, float | None]
Rate = tuple[ArrayLike, ArrayLike]  # amount and cost of every item
UNDEFINED: Interval = {"value": None, "low": None, "high": None}


class PairedBootstrap:
    """95 % intervals of statistics over items.

    Parameters
    ----------
    documents
        The document of each item.
    replicates, seed
        Number of replicates, and the seed they follow from.

    Examples
    --------
    >>> bootstrap = PairedBootstrap(["a", "b"], replicates=100, seed=0)
    >>> bootstrap.rate_ratio((10, 20), (1, 2), (10, 20), (2, 4))
    {'value': 2.0, 'low': 2.0, 'high': 2.0}
    """

    def __init__(self, documents: Sequence[str], replicates: int, seed: int) -> None:
        self._bootstrap = DocumentBootstrap(np.asarray(documents), replicates, seed)

    def of(self, value: Callable[..., Any], *rates: Rate) -> Interval:
        """``value`` of rates, each Σ amount / Σ cost, all over the same resampled documents; undefined (all ``None``) where one
        met no cost. Replicates without a finite value are left out."""
        pairs = [(np.asarray(amount, float), np.asarray(cost, float)) for amount, cost in rates]
        if not all(cost.sum() for _, cost in pairs):
            return dict(UNDEFINED)
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = value(*(self._bootstrap.ratio(*pair) for pair in pairs))
            whole = value(*(amount.sum() / cost.sum() for amount, cost in pairs))
        return interval(float(whole), replicates[np.isfinite(replicates)])

    def rate(self, amount: ArrayLike, cost: ArrayLike) -> Interval:
        """Σ amount / Σ cost."""
        return self.of(lambda rate: rate, (amount, cost))

    def rate_ratio(self, amount: ArrayLike, cost: ArrayLike, base_amount: ArrayLike, base_cost: ArrayLike) -> Interval:
        """Rate of an arm over the rate of a baseline."""
        return self.of(truediv, (amount, cost), (base_amount, base_cost))

    def rate_difference(
        self, amount: ArrayLike, cost: ArrayLike, base_amount: ArrayLike, base_cost: ArrayLike
    ) -> Interval:
        """Rate of an arm less the rate of a baseline."""
        return self.of(sub, (amount, cost), (base_amount, base_cost))

    def rate_over_all(self, arm: Rate, base: Rate, shared: ArrayLike) -> Interval:
        """Rate of a baseline over all items, times the rate of an arm over the baseline's where both are there (``shared``; 0
        elsewhere is the arm's amount and cost)."""
        both = [np.asarray(values, float) * np.asarray(shared, float) for values in base]
        return self.of(lambda made, whole, same: made * whole / same, arm, base, (both[0], both[1]))

    def share_between(self, arm: Rate, low: Rate, high: Rate) -> Interval:
        """How far the rate of an arm has come from a low rate to a high one; undefined where they surely are not apart."""
        apart = self.of(sub, high, low)["low"]
        if apart is None or apart <= 0:
            return dict(UNDEFINED)
        return self.of(_share_between, arm, low, high)

    def median(self, values: ArrayLike) -> Interval:
        """Median over items; a document drawn twice counts twice."""
        values_N = np.asarray(values, float)
        replicates = self._bootstrap.each(lambda weights: weighted_median(values_N, weights))
        return interval(weighted_median(values_N, np.ones(len(values_N))), replicates)


def _share_between(made: Any, low: Any, high: Any) -> Any:
    """NaN where nothing lies between."""
    return np.where(high > low, (made - low) / (high - low), np.nan)


def weighted_median(values_N: np.ndarray, weights_N: np.ndarray) -> float:
    """The middle value where each counts ``weights_N`` times (mean of the two middle ones if there are two)."""
    order = np.argsort(values_N)
    cumulative = np.cumsum(weights_N[order])
    half = cumulative[-1] / 2
    low, high = np.searchsorted(cumulative, half), np.searchsorted(cumulative, half, side="right")
    return float((values_N[order][low] + values_N[order][high]) / 2)


def less_one(ratio: Interval) -> Interval:
    """A gain from a ratio: 1.05 becomes 0.05."""
    return {name: None if value is None else value - 1 for name, value in ratio.items()}
