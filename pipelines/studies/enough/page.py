"""The study's page: a table of what is enough, a table by share or features of every controller, and a plot of both."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.provenance import commit_of
from pipelines.reporting.plots import BLUE, GREY, RED, draw
from pipelines.reporting.section import Picture, Row, Section, Table
from pipelines.studies.enough.learners import GAIN

COLUMNS = 3
FINDING = (
    "Predictors are fitted as the main pipeline fits them, on shares of the training documents or with fewer features, and "
    "measured on all test documents."
)
NOTES = (
    "Enough is the least share at which, and at all larger ones, no metric is surely worse than with all: the interval of what "
    "is lost, over seeds and on these documents, reaches 0. Of the sets of features that are not surely worse than all, that "
    "of fewest bytes is enough.",
    "Brackets are the least and most of the seeds.",
)


def page(pair: str, summary: Mapping[str, Any]) -> Section:
    """A table of how many documents and one of which features, then one for every controller."""
    origin = summary["provenance"]["learning"]
    made = (
        f"{origin['parameters']['seeds']} seeds, prices of {origin['device']['slug']}, commit {commit_of(origin, '`{}`')}, "
        f"{origin['date']}."
    )
    curves, layers = summary["curves"], summary["layers"]
    return Section(
        "enough",
        f"How many documents are enough on {pair}",
        FINDING,
        [
            Table([_size(name, curve, summary["present"][name]) for name, curve in curves.items()], "How many"),
            Table([_features_read(name, made) for name, made in layers.items()], "Which features"),
            *(Table([*map(_share, curve["points"])], f"{name} by share") for name, curve in curves.items()),
            *(Table([*map(_variant, made["points"])], f"{name} by features") for name, made in layers.items()),
        ],
        [Picture("enough", draw(figure, summary), "Metrics by training rows and by features")],
        [*NOTES, made],
    )


def _size(name: str, curve: Mapping[str, Any], present: float) -> Row:
    """How many documents are enough, also by metric, and whether the main pipeline collects as many."""
    points = curve["points"]
    point = points[curve["enough"]]
    by_metric = (f"{metric} {share(points[place])}" for metric, place in curve["enough_by_metric"].items())
    return {
        "controller": name,
        "enough": share(point),
        "documents": point["documents"],
        "rows": point["rows"],
        "by metric": ", ".join(by_metric),
        "lost there at most": None if point is points[-1] else lost_at_most(point),
        "collected by default": f"{present:.1%}",
        "so": verdict(curve, present),
    }


def verdict(curve: Mapping[str, Any], present: float) -> str:
    """What the ``present`` share of the study's documents is, seen from the curve."""
    points = curve["points"]
    short = [metric for metric, place in curve["enough_by_metric"].items() if present < points[place]["share"]]
    return f"too few for {', '.join(short)}" if short else "enough"


def _features_read(name: str, made: Mapping[str, Any]) -> Row:
    """Which features earn their storage."""
    whole, point = made["points"][-1], made["points"][made["cheapest"]]
    lost = None if point is whole else lost_at_most(point)
    named = {"controller": name, "reads all": whole["variant"], "bytes a row": whole["bytes"]}
    return {**named, "enough": point["variant"], "bytes of enough": point["bytes"], "lost at most": lost}


def _share(point: Mapping[str, Any]) -> Row:
    return {"share": share(point), "documents": point["documents"], "rows": point["rows"], **_metrics(point)}


def _variant(point: Mapping[str, Any]) -> Row:
    return {"variant": point["variant"], "bytes": point["bytes"], **_metrics(point)}


def _metrics(point: Mapping[str, Any]) -> Row:
    cells = {
        name: f"{shown(made['value'], name)} ({shown(made['least'], name)} to {shown(made['most'], name)})"
        for name, made in point["metrics"].items()
    }
    return {**cells, "surely worse": ", ".join(point["surely_worse"]) or None}


def lost_at_most(point: Mapping[str, Any]) -> str:
    """What a variant loses at most against the whole, by metric; nothing where it surely gains."""
    known = {metric: lost["high"] for metric, lost in point["losses"].items()}
    return ", ".join(
        f"{metric} {'unknown' if high is None else shown(max(0.0, high), metric)}" for metric, high in known.items()
    )


def share(point: Mapping[str, Any]) -> str:
    """A share of the training documents."""
    return f"{100 * point['share']:.4g}%"


def shown(value: float, metric: str) -> str:
    """A metric's value or loss."""
    return f"{value:.1%}" if metric.startswith(GAIN) else f"{value:.3f}"


def figure(summary: Mapping[str, Any]) -> Figure:
    """A panel per controller of its first metric: over training rows, the least and most of the seeds in light, red at what is
    enough and dashed at what is collected by default; then by set of features, red the fewest bytes not surely worse than all."""
    count = len(summary["curves"]) + len(summary["layers"])
    rows = math.ceil(count / COLUMNS)
    made = Figure(figsize=(3.9 * COLUMNS, 2.8 * rows), layout="constrained")
    panels = list(made.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    for axes, (name, curve) in zip(panels, summary["curves"].items(), strict=False):
        _curve(axes, name, curve, summary["present"][name])
    for axes, (name, layers) in zip(panels[len(summary["curves"]) :], summary["layers"].items(), strict=False):
        _features(axes, name, layers)
    made.supxlabel("training rows; red: enough; dashed: collected by default. Features: bands are seeds", fontsize=10)
    return made


def _curve(axes: Any, name: str, curve: Mapping[str, Any], present: float) -> None:
    points = curve["points"]
    metric, sizes_ = next(iter(points[0]["metrics"])), np.array([point["rows"] for point in points])
    band = {key: [point["metrics"][metric][key] for point in points] for key in ("value", "least", "most")}
    axes.fill_between(sizes_, band["least"], band["most"], color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(sizes_, band["value"], "o-", color=BLUE, markersize=4)
    axes.axvline(sizes_[curve["enough"]], color=RED, linewidth=1.2)
    axes.axvline(sizes_[-1] * present, color=GREY, linewidth=1.2, linestyle="--")
    axes.set(xscale="log", title=name, ylabel=metric)
    axes.set_xticks(sizes_, [f"{size:,}" for size in sizes_], fontsize=8)
    axes.minorticks_off()
    axes.grid(color="#e6e6e6")


def _features(axes: Any, name: str, layers: Mapping[str, Any]) -> None:
    points = layers["points"]
    metric = next(iter(points[0]["metrics"]))
    for place, point in enumerate(points):
        made, colour = point["metrics"][metric], RED if place == layers["cheapest"] else BLUE
        axes.hlines(place, made["least"], made["most"], color=colour, linewidth=4, alpha=0.6)
        axes.plot(made["value"], place, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(points)), [f"{point['variant']}, {point['bytes']} B" for point in points], fontsize=8)
    axes.set_ylim(len(points) - 0.5, -0.5)
    axes.set(title=name, xlabel=metric)
    axes.grid(axis="x", color="#e6e6e6")
