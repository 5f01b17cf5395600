"""How much is enough: the least that is not surely worse than the whole on any metric.

    loss_kr   = metric of the whole - metric of the variant (the other way round where lower is better), seed k, replicate r
    interval  of mean_k loss_kr, over replicates r of the test documents, each with seeds k drawn again

A variant is surely worse where the interval's lower end lies above 0. Of shares of traces the least is taken at which, and at all
larger ones, no metric is surely worse: where that is the whole, more traces might still help. The interval's upper end says what
the variant loses at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipelines.studies.enough.fits import LOWER_IS_BETTER
from predictors.training.bootstrap import interval

Interval = dict[str, float | None]


@dataclass(frozen=True)
class Seeds:
    """A metric of one variant: ``values`` by seed [K] and ``replicates`` [K, R]."""

    values: np.ndarray
    replicates: np.ndarray

    @staticmethod
    def of(rows: pd.DataFrame) -> "Seeds":
        """From the rows of one controller, variant and metric."""
        rows = rows.sort_values("seed")
        return Seeds(rows["value"].to_numpy(), np.stack(rows["replicates"].to_list()))

    def summary(self) -> dict[str, float | None]:
        """Mean over seeds with its interval over documents, and the seeds' own least and most."""
        made = interval(float(self.values.mean()), self.replicates.mean(axis=0))
        return made | {"least": float(self.values.min()), "most": float(self.values.max())}


def loss(variant: Seeds, whole: Seeds, metric: str, seed: int) -> Interval:
    """What the variant loses against the whole, seed by seed; below 0 it gains."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    loss_KR = sign * (whole.replicates - variant.replicates)
    seeds, replicates = loss_KR.shape
    drawn_RK = np.random.default_rng(seed).integers(seeds, size=(replicates, seeds))
    resampled_R = loss_KR[drawn_RK, np.arange(replicates)[:, None]].mean(axis=1)
    return interval(float(sign * (whole.values - variant.values).mean()), resampled_R)


def surely_worse(losses: Mapping[str, Interval]) -> list[str]:
    """Metrics on which a variant surely loses."""
    return [metric for metric, lost in losses.items() if lost["low"] is not None and lost["low"] > 0]


def enough(losses: Sequence[Mapping[str, Interval]]) -> int:
    """Place of the least share that is enough, of shares from the least to the whole, each with its losses by metric."""
    places = range(len(losses))
    return next(place for place in places if not any(surely_worse(losses[later]) for later in places[place:]))


def cheapest(variants: Sequence[Mapping[str, Any]]) -> int:
    """Place of the variant of fewest ``bytes`` that is not surely worse; of equals that which loses least on the first metric."""
    able = [place for place, variant in enumerate(variants) if not surely_worse(variant["losses"])]

    def price(place: int) -> tuple[float, float]:
        first = next(iter(variants[place]["losses"].values()))
        return variants[place]["bytes"], first["value"]

    return min(able, key=price)
