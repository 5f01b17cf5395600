"""The study's page: a table of what is enough, a table by share or features of every controller, and a plot of both."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reporting.markdown import markdown_table
from pipelines.reporting.plots import BLUE, GREY, RED
from pipelines.reporting.section import Column, Table
from pipelines.studies.enough.learners import GAIN

COLUMNS = 3


def sections(pair: str, summary: Mapping[str, Any]) -> list[str]:
    """The page, part by part."""
    origin = summary["provenance"]["learning"]
    changed = " with uncommitted changes" if origin["uncommitted_changes"] else ""
    return [
        f"# How many documents are enough on {pair}",
        "Predictors are fitted as the main pipeline fits them, on shares of the training documents or with fewer features, and "
        "measured on all test documents. Enough is the least share at which, and at all larger ones, no metric is surely worse "
        "than with all: the interval of what is lost, over seeds and on these documents, reaches 0. Brackets are the least and "
        f"most of the seeds. {origin['parameters']['seeds']} seeds, prices of {origin['device']['slug']}, commit "
        f"`{(origin['commit'] or 'unknown')[:12]}`{changed}, {origin['date']}.",
        "## How many\n\n" + sizes(summary),
        "## Which features\n\nOf the sets of features that are not surely worse than all, that of fewest bytes.",
        features(summary),
        *(f"## {name} by share\n\n{variants(curve['points'], 'share')}" for name, curve in summary["curves"].items()),
        *(
            f"## {name} by features\n\n{variants(made['points'], 'variant')}"
            for name, made in summary["layers"].items()
        ),
    ]


def sizes(summary: Mapping[str, Any]) -> str:
    """How many documents are enough, by controller and metric, and what the main pipeline collects."""
    rows = []
    for name, curve in summary["curves"].items():
        points, present = curve["points"], summary["present"][name]
        point = points[curve["enough"]]
        by_metric = ", ".join(f"{metric} {share(points[place])}" for metric, place in curve["enough_by_metric"].items())
        lost = "–" if point is points[-1] else at_most(point)
        learned = [name, share(point), str(point["documents"]), str(point["rows"])]
        rows.append([*learned, by_metric, lost, f"{present:.1%}", verdict(curve, present)])
    learned = ["controller", "enough", "documents", "rows"]
    return _table([*learned, "by metric", "lost there at most", "collected by default", "so"], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    return markdown_table(Table(tuple(map(Column, header)), tuple(tuple(row) for row in rows)))


def verdict(curve: Mapping[str, Any], present: float) -> str:
    """What the ``present`` share of the study's documents is, seen from the curve."""
    points = curve["points"]
    short = [metric for metric, place in curve["enough_by_metric"].items() if present < points[place]["share"]]
    return f"too few for {', '.join(short)}" if short else "enough"


def features(summary: Mapping[str, Any]) -> str:
    """Which features earn their storage, by controller."""
    rows = []
    for name, made in summary["layers"].items():
        whole, point = made["points"][-1], made["points"][made["cheapest"]]
        read = [part for one in (whole, point) for part in (one["variant"], str(one["bytes"]))]
        rows.append([name, *read, "–" if point is whole else at_most(point)])
    return _table(["controller", "reads all", "bytes a row", "enough", "bytes a row", "lost at most"], rows)


def variants(points: list[dict[str, Any]], first: str) -> str:
    """One controller in every variant."""
    columns = ["documents", "rows"] if first == "share" else ["bytes"]
    metrics = list(points[0]["metrics"])
    rows = []
    for point in points:
        cells = [
            f"{shown(made['value'], name)} ({shown(made['least'], name)} to {shown(made['most'], name)})"
            for name, made in point["metrics"].items()
        ]
        named = [share(point) if first == "share" else point["variant"], *(str(point[name]) for name in columns)]
        rows.append([*named, *cells, ", ".join(point["surely_worse"]) or "–"])
    return _table([first, *columns, *metrics, "surely worse"], rows)


def at_most(point: Mapping[str, Any]) -> str:
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
