"""Whiskers, bands, stacked bars and heat maps of the report. Okabe-Ito colours, told apart without colour vision."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipelines.reporting.text import Interval, known
from predictors.rounds import PHASES

GREY, LIGHT_BLUE, BLUE, ORANGE, GREEN, RED, PURPLE = (
    "#8a8a8a",
    "#9ecbea",
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
)
WAIT = "#e6e6e6"
PHASE_COLOURS = dict(zip((*PHASES, "rest"), (ORANGE, BLUE, GREEN, PURPLE, WAIT, "#c9c9c9"), strict=True))
SETTING_STYLES = (
    (BLUE, "o"),
    (RED, "s"),
    (GREEN, "^"),
    (PURPLE, "D"),
    (ORANGE, "v"),
    (GREY, "P"),
    ("#56b4e9", "X"),
    ("#7a4a1e", "*"),
)
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.frameon": False,
}


Look = tuple[str, str]  # colour and marker
Marks = tuple[str, Sequence[tuple[Interval | None, Look]]]  # a name and what is known of it
Panel = tuple[str, Sequence[Marks]]
Drawn = TypeVar("Drawn")


def draw(function: Callable[..., Drawn], *arguments: Any) -> Drawn:
    """Call a plotting function under the house style."""
    with matplotlib.rc_context(STYLE):
        return function(*arguments)


def styles(names: Sequence[str]) -> dict[str, Look]:
    """A look for every name."""
    return {name: SETTING_STYLES[place % len(SETTING_STYLES)] for place, name in enumerate(names)}


def whiskers(
    panels: Sequence[Panel],
    label: str,
    line: float | None = None,
    percent: bool = False,
    legend: Mapping[str, Look] | None = None,
    columns: int | None = None,
    numbers: str = "",
) -> Figure:
    """Intervals of every row from top to bottom, a panel for each (title, rows); ``line``: where nothing is gained; ``numbers``:
    how values are written next to them. Undefined intervals are left out."""
    columns = columns or len(panels)
    marks = max((len(intervals) for _, rows in panels for _, intervals in rows), default=1)
    height = (0.22 + 0.1 * marks) * max(1, *(len(rows) for _, rows in panels))
    lines = len(panels) // columns
    width = max(6.4, min(5.4 * columns, 15.0))
    figure = Figure(figsize=(width, (1.1 + height) * lines + 0.3), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(lines, columns, squeeze=False).flat, panels, strict=True):
        for place, (_, intervals) in enumerate(rows):
            for index, (interval, look) in enumerate(intervals):
                at = place + 0.6 * ((index + 0.5) / len(intervals) - 0.5)
                _whisker(axes, at, interval, look, 100 if percent else 1, numbers)
        if line is not None:
            axes.axvline(line, color="#333333", linewidth=1)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set(xlabel=label + (", %" if percent else ""), title=title)
        axes.grid(axis="x", color="#e6e6e6")
    if legend:
        handles = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in legend.values()]
        figure.legend(handles, list(legend), loc="outside lower center", ncols=min(4, len(legend)))
    return figure


def _whisker(axes: Axes, at: float, interval: Interval | None, look: Look, scale: float, numbers: str) -> None:
    if interval is None or not known(interval):
        return
    value, low, high = (scale * (interval[name] or 0.0) for name in ("value", "low", "high"))
    errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
    style: dict[str, Any] = {"color": look[0], "fmt": look[1], "markersize": 4.5, "capsize": 2, "linewidth": 1}
    axes.errorbar(value, at, xerr=errors, **style)
    if numbers:
        axes.annotate(numbers.format(value), (high, at), (5, 0), textcoords="offset points", va="center", fontsize=8.5)


def band(
    axes: Axes, places: Sequence[float], intervals: Sequence[Interval], look: Look, label: str, scale: float = 1
) -> None:
    """Values as a line, their intervals as a band."""
    value, low, high = (scale * np.array([one[name] for one in intervals], float) for name in ("value", "low", "high"))
    axes.fill_between(places, low, high, color=look[0], alpha=0.13)
    axes.plot(places, value, color=look[0], marker=look[1], label=label)
    axes.grid(axis="y", color="#e6e6e6")


def stacked(
    panels: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]], colours: Mapping[str, str], label: str
) -> Figure:
    """Horizontal bars of parts, a panel for each (title, amounts by row and part)."""
    rows = max(len(amounts) for _, amounts in panels)
    figure = Figure(figsize=(5.2 * len(panels), 1.3 + 0.34 * rows), layout="constrained")
    for axes, (title, amounts) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        left = np.zeros(len(amounts))
        for part, colour in colours.items():
            widths = np.array([parts.get(part, 0.0) for parts in amounts.values()])
            axes.barh(range(len(amounts)), widths, left=left, color=colour, edgecolor="white", label=part)
            left += widths
        axes.set_yticks(range(len(amounts)), list(amounts))
        axes.invert_yaxis()
        axes.set(title=title, xlabel=label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(colours))
    return figure


def heat_map(axes: Axes, shares: np.ndarray, texts: Sequence[Sequence[str]], size: float = 10) -> None:
    """Shares from 0 to 1 as blue cells with a text in each."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*shares.shape):
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=size, color=colour)
