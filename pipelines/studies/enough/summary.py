"""What fits with less to learn from say: every metric, what is lost against the whole, what is enough, and the study's page.

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

from pipelines.measuring.provenance import commit_of
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import Metric, Section, Table, grid
from pipelines.reporting.text import FINE, GAIN, Interval, shown, surely_above
from pipelines.studies.enough.learners import BRIER, DOCUMENTS, ECE, Row
from predictors.training.intervals import jackknife

SIZES = ("documents", "rows", "bytes")  # of what a fit learns from
FINDING = (
    "Predictors are fitted as the main pipeline fits them, on shares of the training documents or with fewer features, and "
    "measured on all test documents."
)
NOTES = (
    "Enough is the least share at which, and at all larger ones, no metric is surely worse than with all: the interval of what "
    "is lost, over seeds and on these documents, reaches 0. Of the sets of features that are not surely worse than all, that "
    "of fewest bytes is enough.",
    "Brackets are the least and most of the seeds. Bold, and red in the picture: enough.",
)
Record = Mapping[str, Any]


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
    return [metric for metric, lost in losses.items() if surely_above(lost)]


def enough(losses: Sequence[Mapping[str, Interval]]) -> int:
    """Place of the least share that is enough, of shares from the least to the whole, each with its losses by metric."""
    places = range(len(losses))
    return next(place for place in places if not any(surely_worse(losses[later]) for later in places[place:]))


def cheapest(points: Sequence[Record]) -> int:
    """Place of the variant of fewest ``bytes`` that is not surely worse; of equals that which loses least on the first metric."""
    able = [place for place, point in enumerate(points) if not surely_worse(point["losses"])]
    return min(able, key=lambda place: (points[place]["bytes"], next(iter(points[place]["losses"].values()))["value"]))


def _points(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Every variant of one controller in order, the last of which is the whole, with its sizes."""
    values: Any = rows.groupby(["variant", "metric"], sort=False)["value"].agg(list)
    whole = values[rows["variant"].iloc[-1]]
    for variant, part in rows.groupby("variant", sort=False):
        metrics = values[variant].to_dict()
        losses = {metric: loss(made, whole[metric], metric) for metric, made in metrics.items()}
        over_seeds = {
            metric: {"value": float(np.mean(made)), "least": min(made), "most": max(made)}
            for metric, made in metrics.items()
        }
        sizes = part.reindex(columns=SIZES).dropna(axis=1).mean()
        point = {"variant": variant, "metrics": over_seeds, "losses": losses, "surely_worse": surely_worse(losses)}
        yield point | {str(name): round(size) for name, size in sizes.items()}


def page(pair: str, summary: Record) -> Section:
    """A table of how many documents and one of which features, then one for every controller, and a plot of these."""
    origin = summary["provenance"]["learning"]
    made = (
        f"{origin['parameters']['seeds']} seeds, prices of {origin['device']['slug']}, commit {commit_of(origin, '`{}`')}, "
        f"{origin['date']}."
    )
    curves, layers = summary["curves"], summary["layers"]
    counts = {name: (curve, summary["present"][name]) for name, curve in curves.items()}
    tables = [_table(f"{name} by share", curve["points"], curve["enough"]) for name, curve in curves.items()]
    tables += [_table(f"{name} by features", one["points"], one["cheapest"]) for name, one in layers.items()]
    caption, panels = "The first metric by share of the documents and by features", [*map(_panel, tables)]
    pictures = [picture("enough", caption, whiskers, panels, ["metric"], "bands are seeds", None)]
    first = grid("controller", counts, HOW_MANY, "How many")
    second = grid("controller", {name: (one,) for name, one in layers.items()}, WHICH, "Which features")
    title = f"How many documents are enough on {pair}"
    return Section("enough", title, FINDING, [first, second, *tables], pictures, [*NOTES, made])


def verdict(curve: Record, present: float) -> str:
    """What the ``present`` share of the study's documents is, seen from the curve."""
    points = curve["points"]
    short = [metric for metric, place in curve["enough_by_metric"].items() if present < points[place]["share"]]
    return f"too few for {', '.join(short)}" if short else "enough"


def lost_at_most(points: Sequence[Record], place: int) -> str | None:
    """What a variant loses at most against the whole, by metric; nothing where it surely gains."""
    lost = []
    for metric, interval in points[place]["losses"].items():
        most, unit = interval["high"], GAIN if metric.startswith("gain") else FINE
        lost.append(f"{metric} {'unknown' if most is None else shown(max(0.0, most), unit)}")
    return None if place == len(points) - 1 else ", ".join(lost)


def share(point: Record) -> str:
    """A share of the training documents."""
    return f"{100 * point['share']:.4g}%"


HOW_MANY: dict[str, Metric] = {  # of a curve, and whether the main pipeline collects as many
    "enough": lambda curve, present: share(curve["points"][curve["enough"]]),
    "documents": lambda curve, present: curve["points"][curve["enough"]]["documents"],
    "rows": lambda curve, present: curve["points"][curve["enough"]]["rows"],
    "by metric": lambda curve, present: ", ".join(
        f"{metric} {share(curve['points'][place])}" for metric, place in curve["enough_by_metric"].items()
    ),
    "lost there at most": lambda curve, present: lost_at_most(curve["points"], curve["enough"]),
    "collected by default": lambda curve, present: f"{present:.1%}",
    "so": verdict,
}
WHICH: dict[str, Metric] = {  # features earn their storage
    "reads all": lambda made: made["points"][-1]["variant"],
    "bytes a row": lambda made: made["points"][-1]["bytes"],
    "enough": lambda made: made["points"][made["cheapest"]]["variant"],
    "bytes of enough": lambda made: made["points"][made["cheapest"]]["bytes"],
    "lost at most": lambda made: lost_at_most(made["points"], made["cheapest"]),
}


def _table(caption: str, points: Sequence[Record], enough: int) -> Table:
    """Every share or variant with its metrics, the mean of the seeds with the least and most; ``enough``: place of what is."""
    label = "share" if "share" in points[0] else "variant"
    rows = []
    for point in points:
        sizes = {name: point[name] for name in SIZES if name in points[0]}
        metrics = {
            name: {"value": made["value"], "low": made["least"], "high": made["most"]}
            for name, made in point["metrics"].items()
        }
        named = {label: share(point) if label == "share" else point["variant"]}
        rows.append(named | sizes | metrics | {"surely worse": ", ".join(point["surely_worse"]) or None})
    return Table(rows, caption, {rows[enough][label]}, FINE)


def _panel(table: Table) -> Table:
    """The rows of a table with its first metric alone."""
    label, *columns = table.columns
    metric = next(name for name in columns if isinstance(table.rows[0][name], dict))
    rows = [{label: row[label], "metric": row[metric]} for row in table.rows]
    return Table(rows, f"{table.caption}: {metric}", table.marked, table.unit_of(metric))
