"""Tables as whiskers and curves. Okabe-Ito colours, told apart without colour vision."""

from collections.abc import Callable, Sequence
from itertools import cycle
from math import ceil, nan
from typing import Any, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipelines.report.section import Cell, Picture, Table
from pipelines.report.text import SCALES

GREY, BLUE, ORANGE = "#8a8a8a", "#0072b2", "#e69f00"
GREEN, RED, PURPLE = "#009e73", "#d55e00", "#cc79a7"
SETTING_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, GREY, "#56b4e9", "#7a4a1e")
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

Drawn = TypeVar("Drawn")


def draw(function: Callable[..., Drawn], *arguments: Any, **options: Any) -> Drawn:
    """Call a plotting function under the house style."""
    with matplotlib.rc_context(STYLE):
        return function(*arguments, **options)


def picture(name: str, caption: str, function: Callable[..., Figure], *arguments: Any, **options: Any) -> Picture:
    """Draw a picture by a plotting function, with its name and caption."""
    return Picture(name, draw(function, *arguments, **options), caption)


def styles(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for every name."""
    return dict(zip(names, cycle(zip(SETTING_COLOURS, "os^DvPX*", strict=True)), strict=False))


def whiskers(
    tables: Sequence[Table], columns: Sequence[str], label: str, line: float | None = 0.0, across: int = 3
) -> Figure:
    """Intervals in ``columns``, row by row from top to bottom, a panel for each table, so many ``across``; ``line``: where
    nothing is gained. Marked rows of a single column are red."""
    looks, rows = styles(columns), [len(table.rows) for table in tables]
    figure, drawn = panels(tables, across, 0.8 + (0.22 + 0.1 * len(looks)) * max(rows, default=1))
    for axes, table in drawn:
        for place, row in enumerate(table.rows):
            for index, (column, (colour, marker)) in enumerate(looks.items()):
                at = place + 0.6 * ((index + 0.5) / len(looks) - 0.5)
                colour = RED if len(looks) == 1 and table.is_marked(row) else colour
                value, low, high = SCALES.get(table.unit_of(column), 1) * ends(row.get(column))
                reach = [[max(0.0, value - low)], [max(0.0, high - value)]]
                axes.errorbar(value, at, xerr=reach, color=colour, fmt=marker, markersize=4.5, capsize=2, linewidth=1)
        if line is not None:
            axes.axvline(line, color="#333333", linewidth=1)
        axes.set_yticks(range(len(table.rows)), [str(row[table.columns[0]]) for row in table.rows])
        axes.set(xlabel=label, ylim=(len(table.rows) - 0.5, -0.5))
        axes.grid(axis="x", color="#e6e6e6")
    if len(looks) > 1:
        handles = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in looks.values()]
        figure.legend(handles, list(looks), loc="outside lower center", ncols=min(4, len(looks)))
    return figure


def curves(tables: Sequence[Table], across: int = 4, line: float | None = None) -> Figure:
    """The columns of every table over its first one: values as lines, intervals as bands; a panel for each table, so many
    ``across``; ``line``: where nothing is gained."""
    figure, drawn = panels(tables, across, 3.2)
    for axes, table in drawn:
        label, *names = table.columns
        places = np.array([row[label] for row in table.rows], float)
        for name, (colour, marker) in styles(names).items():
            cells = [ends(row.get(name)) for row in table.rows]
            value, low, high = SCALES.get(table.unit_of(name), 1) * np.array(cells).T
            axes.fill_between(places, low, high, color=colour, alpha=0.13)
            axes.plot(places, value, color=colour, marker=marker, markersize=4, label=name)
        if line is not None:
            axes.axhline(line, color="#333333", linewidth=1)
        axes.set(xlabel=label, ylim=(0, None))
        axes.grid(axis="y", color="#e6e6e6")
        if len(names) > 1:
            axes.legend(fontsize=8)
    return figure


def ends(cell: Cell) -> np.ndarray:
    """Value, low and high of an interval, or of a number alone; not a number where it is unknown."""
    made = cell if isinstance(cell, dict) else {"value": nan if cell is None else cell}
    return np.array([made["value"] if made.get(end) is None else made[end] for end in ("value", "low", "high")], float)


def panels(tables: Sequence[Table], across: int, height: float) -> tuple[Figure, list[tuple[Axes, Table]]]:
    """A figure, and a panel of that height in it for each table, under its caption."""
    across = min(across, len(tables))
    down = ceil(len(tables) / across)
    figure = Figure(figsize=(min(6.4 * across, 16.0), 0.4 + down * height), layout="constrained")
    every: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in every[len(tables) :]:
        axes.set_axis_off()
    drawn = list(zip(every, tables, strict=False))
    for axes, table in drawn:
        axes.set_title(table.caption.partition(";")[0])
    return figure, drawn
