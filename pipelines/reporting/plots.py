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

GREY, BLUE, ORANGE = "#8a8a8a", "#0072b2", "#e69f00"
GREEN, RED, PURPLE, WAIT = "#009e73", "#d55e00", "#cc79a7", "#e6e6e6"
PHASE_COLOURS = dict(zip((*PHASES, "rest"), (ORANGE, BLUE, GREEN, PURPLE, WAIT, "#c9c9c9"), strict=True))
SETTING_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, GREY, "#56b4e9", "#7a4a1e")
SETTING_STYLES = tuple(zip(SETTING_COLOURS, "os^DvPX*", strict=True))
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
Panels = Mapping[str, Mapping[str, Sequence[Interval | None]]]  # by title, then by row
ONE = {"": (BLUE, "o")}  # the look of rows of one interval
Drawn = TypeVar("Drawn")


def draw(function: Callable[..., Drawn], *arguments: Any) -> Drawn:
    """Call a plotting function under the house style."""
    with matplotlib.rc_context(STYLE):
        return function(*arguments)


def styles(names: Sequence[str]) -> dict[str, Look]:
    """A look for every name."""
    return {name: SETTING_STYLES[place % len(SETTING_STYLES)] for place, name in enumerate(names)}


def whiskers(
    panels: Panels,
    label: str,
    line: float,
    percent: bool = False,
    looks: Mapping[str, Look] = ONE,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Intervals of every row from top to bottom; ``looks``: by name, of a row's intervals; ``colours``: of rows that have one of
    their own; ``line``: where nothing is gained. Undefined intervals are left out."""
    height = (0.22 + 0.1 * len(looks)) * max(1, *map(len, panels.values()))
    figure = Figure(figsize=(max(6.4, min(5.4 * len(panels), 15.0)), 1.4 + height), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        for place, (name, intervals) in enumerate(rows.items()):
            for index, (interval, (colour, marker)) in enumerate(zip(intervals, looks.values(), strict=True)):
                at = place + 0.6 * ((index + 0.5) / len(looks) - 0.5)
                _whisker(axes, at, interval, ((colours or {}).get(name, colour), marker), 100 if percent else 1)
        axes.axvline(line, color="#333333", linewidth=1)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set(xlabel=label + (", %" if percent else ""), title=title)
        axes.grid(axis="x", color="#e6e6e6")
    if len(looks) > 1:
        handles = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in looks.values()]
        figure.legend(handles, list(looks), loc="outside lower center", ncols=min(4, len(looks)))
    return figure


def _whisker(axes: Axes, at: float, interval: Interval | None, look: Look, scale: float) -> None:
    if interval is None or not known(interval):
        return
    value, low, high = (scale * (interval[name] or 0.0) for name in ("value", "low", "high"))
    errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar(value, at, xerr=errors, color=look[0], fmt=look[1], markersize=4.5, capsize=2, linewidth=1)


def band(
    axes: Axes, places: Sequence[float], intervals: Sequence[Interval], look: Look, label: str, scale: float = 1
) -> None:
    """Values as a line, their intervals as a band."""
    value, low, high = (scale * np.array([one[name] for one in intervals], float) for name in ("value", "low", "high"))
    axes.fill_between(places, low, high, color=look[0], alpha=0.13)
    axes.plot(places, value, color=look[0], marker=look[1], label=label)
    axes.grid(axis="y", color="#e6e6e6")


def stacked(panels: Mapping[str, Mapping[str, Mapping[str, float]]], colours: Mapping[str, str], label: str) -> Figure:
    """Horizontal bars of parts, a panel for each title: amounts by row and part."""
    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(5.2 * len(panels), 1.3 + 0.34 * rows), layout="constrained")
    for axes, (title, amounts) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
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


def heat_map(
    axes: Axes,
    shares: np.ndarray,
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    size: int = 10,
) -> None:
    """Shares from 0 to 1 as blue cells with a text in each."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.ndindex(*shares.shape):
        colour = "white" if shares[row, column] > 0.6 else "black"
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=size, color=colour)
    axes.set_yticks(range(len(rows)), rows, fontsize=size)
    axes.set_xticks(range(len(columns)), columns, fontsize=size)
