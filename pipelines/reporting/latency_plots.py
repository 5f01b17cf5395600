"""Plots of a latency profile."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.reporting.plots import band, styles
from pipelines.reporting.statistics import Interval
from predictors.latency.profile import LatencyProfile
from predictors.latency.tables import LatencyTable


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
    for context, look in _looks(table):
        cells = [table.at(**{axis: point, "context": context}) for point in points]
        intervals: list[Interval] = [{"value": cell.seconds, "low": cell.low, "high": cell.high} for cell in cells]
        band(axes, points, intervals, look, f"context {context}", scale=1e3)
    axes.set_ylim(0, None)


def _verify_ratios(axes: Axes, profile: LatencyProfile) -> None:
    table = profile.tables["target"]
    tokens = table.axes["tokens"]
    for context, (colour, marker) in _looks(table):
        axes.plot(tokens, [profile.verify_ratio(n, context) for n in tokens], color=colour, marker=marker)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="tokens in the pass, n", ylabel="target(n) / target(1)", title="What verifying n tokens costs")
    axes.grid(axis="y", color="#e6e6e6")


def _looks(table: LatencyTable) -> list[tuple[int, tuple[str, str]]]:
    contexts = list(table.axes["context"])
    return list(zip(contexts, styles([str(context) for context in contexts]).values(), strict=True))
