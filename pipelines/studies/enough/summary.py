"""What fits with less to learn from say: every metric, what is lost against the whole, and what is enough.

    loss_k     metric of the whole - metric of the variant (the other way round where lower is better), seed k
    interval   of mean_k loss_k over seeds, t_{.975, K-1}; the test documents are the same for all

A variant is surely worse where the interval's lower end lies above 0. Of shares the least is enough at which, and at all larger
ones, no metric is surely worse: where that is the whole, more documents might still help. The interval's upper end says what a
variant loses at most on these test documents.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipelines.reporting.text import Interval
from pipelines.studies.enough.learners import BRIER, DOCUMENTS, ECE, Row
from predictors.training.intervals import jackknife

SIZES = ("documents", "rows", "bytes")  # of what a fit learns from


def summarised(rows: Sequence[Row]) -> dict[str, Any]:
    """``curves`` by controller: points by share, the place of the least that is ``enough``, also by metric; ``layers``: points by
    set of features, and the place of the ``cheapest`` that is not surely worse than all."""
    curves, layers = {}, {}
    for (study, name), some in pd.DataFrame(rows).groupby(["study", "controller"], sort=False):
        points = [*_points(some)]
        if study == DOCUMENTS:
            losses = [point["losses"] for point in points]
            by_metric = {metric: enough([{metric: lost[metric]} for lost in losses]) for metric in losses[0]}
            points = [point | {"share": float(point["variant"])} for point in points]
            curves[name] = {"points": points, "enough": enough(losses), "enough_by_metric": by_metric}
        else:
            layers[name] = {"points": points, "cheapest": cheapest(points)}
    return {"curves": curves, "layers": layers}


def loss(variant: Sequence[float], whole: Sequence[float], metric: str) -> Interval:
    """What the variant loses against the whole, seed by seed; below 0 it gains."""
    lost_K = np.subtract(whole, variant) * (-1 if metric.startswith((ECE, BRIER)) else 1)
    columns_K2 = np.stack([lost_K, np.ones(len(lost_K))], axis=1)
    return jackknife(columns_K2, np.arange(len(lost_K)), lambda sums: sums[:, 0] / sums[:, 1])


def surely_worse(losses: Mapping[str, Interval]) -> list[str]:
    """Metrics on which a variant surely loses."""
    return [metric for metric, lost in losses.items() if lost["low"] is not None and lost["low"] > 0]


def enough(losses: Sequence[Mapping[str, Interval]]) -> int:
    """Place of the least share that is enough, of shares from the least to the whole, each with its losses by metric."""
    places = range(len(losses))
    return next(place for place in places if not any(surely_worse(losses[later]) for later in places[place:]))


def cheapest(points: Sequence[Mapping[str, Any]]) -> int:
    """Place of the variant of fewest ``bytes`` that is not surely worse; of equals that which loses least on the first metric."""
    able = [place for place, point in enumerate(points) if not surely_worse(point["losses"])]
    return min(able, key=lambda place: (points[place]["bytes"], next(iter(points[place]["losses"].values()))["value"]))


def _points(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Every variant of one controller in order, the last of which is the whole, with its sizes."""
    variants = dict(iter(rows.groupby("variant", sort=False)))
    values = {
        str(variant): {str(metric): made["value"].tolist() for metric, made in part.groupby("metric", sort=False)}
        for variant, part in variants.items()
    }
    whole = values[list(values)[-1]]
    for variant, metrics in values.items():
        losses = {metric: loss(made, whole[metric], metric) for metric, made in metrics.items()}
        shown = {
            metric: {"value": float(np.mean(made)), "least": min(made), "most": max(made)}
            for metric, made in metrics.items()
        }
        sizes = variants[variant].reindex(columns=SIZES).dropna(axis=1).mean()
        point = {"variant": variant, "metrics": shown, "losses": losses, "surely_worse": surely_worse(losses)}
        yield point | {str(name): round(size) for name, size in sizes.items()}
