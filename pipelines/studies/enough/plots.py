"""Plots of what is enough: learning curves, and what every set of features knows."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reporting.plots import BLUE, GREY, RED
from pipelines.studies.enough.fits import ASKED, AUROC, MACRO_AUC

COLUMNS = 3
DRAWN = (MACRO_AUC, AUROC, ASKED)


def curves(summary: Mapping[str, Any]) -> Figure:
    """What each controller knows over training rows, 95 % over documents in light and seeds in dark; a line at what is
    enough, a dashed one at what the main pipeline collects."""
    figure, panels = _panels(len(summary["curves"]))
    for axes, (name, curve) in zip(panels, summary["curves"].items(), strict=False):
        points, metric = curve["points"], drawn(curve["points"][0]["metrics"])
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
        axes.set_xticks(rows, [f"{count:,}" for count in rows], fontsize=8)
        axes.minorticks_off()
        axes.grid(color="#e6e6e6")
    figure.supxlabel("training rows; red: enough; dashed: collected by default", fontsize=10)
    return figure


def features(summary: Mapping[str, Any]) -> Figure:
    """What each controller knows with every set of features; red: the fewest bytes of a row not surely worse than all."""
    figure, panels = _panels(len(summary["layers"]))
    for axes, (name, study) in zip(panels, summary["layers"].items(), strict=False):
        points, metric = study["points"], drawn(study["points"][0]["metrics"])
        for place, point in enumerate(points):
            made, colour = point["metrics"][metric], RED if place == study["cheapest"] else BLUE
            for low, high, width in (("low", "high", 1), ("least", "most", 4)):
                axes.hlines(place, made[low], made[high], color=colour, linewidth=width, alpha=0.6)
            axes.plot(made["value"], place, "o", color=colour, markersize=5)
        axes.set_yticks(range(len(points)), [f"{point['variant']}, {point['bytes']} B" for point in points], fontsize=8)
        axes.set_ylim(len(points) - 0.5, -0.5)
        axes.set(title=name, xlabel=metric)
        axes.grid(axis="x", color="#e6e6e6")
    figure.supxlabel("thin: documents; thick: seeds; red: fewest bytes of a row not surely worse than all", fontsize=10)
    return figure


def drawn(metrics: Mapping[str, Any]) -> str:
    """The metric that is drawn of several."""
    return next(metric for metric in DRAWN if metric in metrics)


def _panels(count: int) -> tuple[Figure, list[Any]]:
    rows = math.ceil(count / COLUMNS)
    figure = Figure(figsize=(3.9 * COLUMNS, 2.8 * rows), layout="constrained")
    panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels[:count]
