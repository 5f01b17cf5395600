"""Plots of what is enough: learning curves, and metrics beside the bytes of a row."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reporting.plots import BLUE, GREY, RED

COLUMNS = 3


def curves(summary: Mapping[str, Any]) -> Figure:
    """Each controller's first metric over training rows, 95 % over documents in light and seeds in dark; a line at what is
    enough, a dashed one at what the main pipeline collects."""
    figure, panels = _panels(len(summary["curves"]))
    for axes, (name, curve) in zip(panels, summary["curves"].items(), strict=False):
        points, metric = curve["points"], next(iter(curve["points"][0]["metrics"]))
        rows = np.array([point["rows"] for point in points])
        band = {
            key: [point["metrics"][metric][key] for point in points]
            for key in ("value", "low", "high", "least", "most")
        }
        axes.fill_between(rows, band["low"], band["high"], color=BLUE, alpha=0.15, linewidth=0)
        axes.fill_between(rows, band["least"], band["most"], color=BLUE, alpha=0.35, linewidth=0)
        axes.plot(rows, band["value"], "o-", color=BLUE, markersize=4)
        axes.axvline(rows[curve["enough"]], color=RED, linewidth=1.2)
        axes.axvline(rows[-1] * summary["present"][name], color=GREY, linewidth=1.2, linestyle="--")
        axes.set(xscale="log", title=name, ylabel=metric)
        axes.grid(color="#e6e6e6")
    figure.supxlabel("training rows; red: enough; dashed: collected by default", fontsize=10)
    return figure


def features(summary: Mapping[str, Any]) -> Figure:
    """Each controller's first metric beside the bytes of a row; red: the cheapest that is not surely worse than all."""
    figure, panels = _panels(len(summary["layers"]))
    for axes, (name, study) in zip(panels, summary["layers"].items(), strict=False):
        points, metric = study["points"], next(iter(study["points"][0]["metrics"]))
        for place, point in enumerate(points):
            made, colour = point["metrics"][metric], RED if place == study["cheapest"] else BLUE
            errors = [[max(0, made["value"] - made["least"])], [max(0, made["most"] - made["value"])]]
            axes.errorbar(point["bytes"], made["value"], yerr=errors, fmt="o", color=colour, markersize=4, capsize=2)
            axes.annotate(
                point["variant"], (point["bytes"], made["value"]), fontsize=6, xytext=(4, 3), textcoords="offset points"
            )
        axes.set(xscale="log", title=name, ylabel=metric)
        axes.margins(x=0.25)
        axes.grid(color="#e6e6e6")
    figure.supxlabel("bytes of a row's features; whiskers: seeds; red: cheapest not surely worse than all", fontsize=10)
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    rows = math.ceil(count / COLUMNS)
    figure = Figure(figsize=(3.9 * COLUMNS, 2.8 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]
