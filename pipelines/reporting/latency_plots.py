"""Plots of a latency profile."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import LatencyTable

CONTEXT_STYLES = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (RED, "v"), (GREY, "P"))


def latency_figure(profile: LatencyProfile) -> Figure:
    """Target pass by tokens, draft pass by rows (quartiles as bands), and what a wider target pass costs in passes of one."""
    figure = Figure(figsize=(12.5, 3.8), layout="constrained")
    passes, levels, ratios = figure.subplots(1, 3)
    _by_context(passes, profile.tables["target"], "tokens")
    passes.set(xlabel="tokens in the pass", ylabel="milliseconds", title="Target pass")
    _by_context(levels, profile.tables["draft"], "rows")
    levels.set(xlabel="rows in the pass", ylabel="milliseconds", title="Draft pass")
    _verify_ratios(ratios, profile)
    handles, labels = passes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _by_context(axes: Axes, table: LatencyTable, axis: str) -> None:
    points = table.axes[axis]
    for context, (colour, marker) in zip(table.axes["context"], _styles(table), strict=True):
        cells = [table.at(**{axis: point, "context": context}) for point in points]
        low, median, high = (
            1e3 * np.array(column) for column in zip(*((c.low, c.seconds, c.high) for c in cells), strict=True)
        )
        axes.fill_between(points, low, high, color=colour, alpha=0.13)
        axes.plot(points, median, color=colour, marker=marker, label=f"context {context}")
    axes.set_ylim(0, None)
    axes.grid(axis="y", color="#e6e6e6")


def _verify_ratios(axes: Axes, profile: LatencyProfile) -> None:
    table = profile.tables["target"]
    tokens = table.axes["tokens"]
    for context, (colour, marker) in zip(table.axes["context"], _styles(table), strict=True):
        axes.plot(tokens, [profile.verify_ratio(n, context) for n in tokens], color=colour, marker=marker)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="tokens in the pass, n", ylabel="target(n) / target(1)", title="What verifying n tokens costs")
    axes.grid(axis="y", color="#e6e6e6")


def _styles(table: LatencyTable) -> Sequence[tuple[str, str]]:
    return [CONTEXT_STYLES[index % len(CONTEXT_STYLES)] for index in range(len(table.axes["context"]))]
