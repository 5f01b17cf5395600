"""Paired bootstrap over documents, for times of arms that decoded the same prompts.

    rate            Σ tokens / Σ seconds
    rate ratio      rate of an arm / rate of a baseline, both over the same resampled documents (the headline figure)
    rate difference rate of an arm - rate of a baseline, likewise (for shares, which may be 0)
    share between   (rate of an arm - low rate) / (high rate - low rate), likewise
    median ratio    weighted median over prompts of each prompt's own rate ratio (robust against a few slow runs)

Prompts of one document are not independent, so documents are what is drawn. Items are prompts (at a temperature), in one order
for all arms: that is the pairing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from predictors.training.bootstrap import LEVEL, DocumentBootstrap, interval

Interval = dict[str, float | None]
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

    def rate(self, amount: ArrayLike, cost: ArrayLike) -> Interval:
        """Σ amount / Σ cost; undefined (all ``None``) where no cost was met."""
        amount_N, cost_N = np.asarray(amount, float), np.asarray(cost, float)
        if not cost_N.sum():
            return dict(UNDEFINED)
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = self._bootstrap.ratio(amount_N, cost_N)
        return interval(float(amount_N.sum() / cost_N.sum()), replicates[np.isfinite(replicates)])

    def rate_ratio(self, amount: ArrayLike, cost: ArrayLike, base_amount: ArrayLike, base_cost: ArrayLike) -> Interval:
        """Rate of an arm over the rate of a baseline."""
        arrays = [np.asarray(values, float) for values in (amount, cost, base_amount, base_cost)]
        sums = [values.sum() for values in arrays]
        replicates = self._bootstrap.ratio(*arrays[:2]) / self._bootstrap.ratio(*arrays[2:])
        return interval(float(sums[0] / sums[1] / (sums[2] / sums[3])), replicates)

    def rate_over_all(
        self,
        amount: ArrayLike,
        cost: ArrayLike,
        base_amount: ArrayLike,
        base_cost: ArrayLike,
        shared: ArrayLike,
    ) -> Interval:
        """Rate of a baseline over all items, times the rate of an arm over the baseline's where both are there (``shared``; 0
        elsewhere is the arm's ``amount`` and ``cost``). Replicates that draw no shared item are left out."""
        arrays = [np.asarray(values, float) for values in (amount, cost, base_amount, base_cost)]
        both = np.asarray(shared, float)
        arrays += [arrays[2] * both, arrays[3] * both]
        value = np.prod([arrays[place].sum() / arrays[place + 1].sum() for place in (0, 2)])
        value *= arrays[5].sum() / arrays[4].sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            made, whole, base = (self._bootstrap.ratio(arrays[place], arrays[place + 1]) for place in (0, 2, 4))
            replicates = made * whole / base
        return interval(float(value), replicates[np.isfinite(replicates)])

    def rate_difference(
        self, amount: ArrayLike, cost: ArrayLike, base_amount: ArrayLike, base_cost: ArrayLike
    ) -> Interval:
        """Rate of an arm less the rate of a baseline; undefined (all ``None``) where either met no cost."""
        arrays = [np.asarray(values, float) for values in (amount, cost, base_amount, base_cost)]
        sums = [values.sum() for values in arrays]
        if not sums[1] or not sums[3]:
            return dict(UNDEFINED)
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = self._bootstrap.ratio(*arrays[:2]) - self._bootstrap.ratio(*arrays[2:])
        return interval(float(sums[0] / sums[1] - sums[2] / sums[3]), replicates[np.isfinite(replicates)])

    def share_between(
        self,
        amount: ArrayLike,
        cost: ArrayLike,
        low_amount: ArrayLike,
        low_cost: ArrayLike,
        high_amount: ArrayLike,
        high_cost: ArrayLike,
    ) -> Interval:
        """How far the rate of an arm has come from a low rate to a high one; undefined where they surely are not apart."""
        arrays = [np.asarray(values, float) for values in (amount, cost, low_amount, low_cost, high_amount, high_cost)]
        rates = [(arrays[place].sum() / arrays[place + 1].sum()) for place in (0, 2, 4)]
        made, low, high = (self._bootstrap.ratio(arrays[place], arrays[place + 1]) for place in (0, 2, 4))
        if (high <= low).mean() > (1 - LEVEL) / 2:
            return dict(UNDEFINED)
        apart = high > low
        value = float((rates[0] - rates[1]) / (rates[2] - rates[1]))
        return interval(value, ((made - low)[apart] / (high - low)[apart]))

    def median(self, values: ArrayLike) -> Interval:
        """Median over items; a document drawn twice counts twice."""
        values_N = np.asarray(values, float)
        replicates = self._bootstrap.each(lambda weights: weighted_median(values_N, weights))
        return interval(weighted_median(values_N, np.ones(len(values_N))), replicates)


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
