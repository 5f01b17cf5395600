"""Sections as one HTML page with its images inside, readable offline: their pictures drawn as whiskers or curves over tables.

Okabe-Ito colours, told apart without colour vision.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from math import ceil, nan
from pathlib import Path

import matplotlib
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pipelines.report.section import Picture, Section, Table

BLUE, RED = "#0072b2", "#d55e00"
LOOKS = [*zip((BLUE, RED, "#009e73", "#cc79a7", "#e69f00", "#8a8a8a", "#56b4e9", "#7a4a1e"), "os^DvPX*", strict=True)]
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
    "legend.frameon": False,
}


def html(front: Section, sections: Sequence[Section], images: dict[str, bytes]) -> str:
    """Render the page, above the fold `pipelines.report.release`; ``images``: the pictures by name, as PNG."""
    folder = Path(__file__).with_name("templates")
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    encoded = {name: base64.b64encode(image).decode() for name, image in images.items()}
    return environment.get_template("page.html").render(front=front, sections=sections, images=encoded, cell=_cell)


def _cell(text: str) -> Markup:
    """Keep an interval on one line."""
    value, _, ends = (text := text.replace(" %", "\u00a0%")).rpartition(" (")
    return Markup("{} <span>({}</span>").format(value, ends) if value and " " not in ends else escape(text)


@matplotlib.rc_context(STYLE)
def draw(picture: Picture) -> Figure:
    """Draw a panel for each table: intervals in the picture's columns, row by row, or else curves over the first column."""
    across = min(picture.across, len(picture.tables))
    down = ceil(len(picture.tables) / across)
    rows, columns = max(len(table.frame) for table in picture.tables), len(picture.columns)
    height = 0.8 + (0.22 + 0.1 * columns) * rows if columns else 3.2
    figure = Figure(figsize=(min(6.4 * across, 16.0), 0.4 + down * height), layout="constrained")
    panels: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in panels[len(picture.tables) :]:
        axes.set_axis_off()
    for axes, table in zip(panels, picture.tables, strict=False):
        axes.set_title(table.name)
        if columns:
            _whiskers(axes, table, picture)
        else:
            _curves(axes, table)
    if columns > 1:
        looks = zip(picture.columns, LOOKS, strict=False)
        handles = [
            Line2D([], [], color=colour, marker=form, linestyle="", label=name) for name, (colour, form) in looks
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def _whiskers(axes: Axes, table: Table, picture: Picture) -> None:
    """Rows that are known, from top to bottom; marked ones of a single column are red."""
    known = [column for column in picture.columns if column in table.frame]
    table = replace(table, frame=table.frame.dropna(subset=known, how="all" if known else "any"))
    labels = table.frame.iloc[:, 0].astype(str).tolist()
    for index, column in enumerate(picture.columns):
        offset = 0.6 * ((index + 0.5) / len(picture.columns) - 0.5)
        for place, (value, low, high) in enumerate(_ends(table, column)):
            colour, marker = LOOKS[index]
            colour = RED if len(picture.columns) == 1 and labels[place] in table.marked else colour
            reach = [[max(0.0, value - low)], [max(0.0, high - value)]]
            axes.errorbar(
                value, place + offset, xerr=reach, color=colour, fmt=marker, markersize=4.5, capsize=2, linewidth=1
            )
    axes.axvline(picture.line, color="#333333", linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel=picture.label, ylim=(len(labels) - 0.5, -0.5))
    axes.grid(axis="x", color="#e6e6e6")


def _curves(axes: Axes, table: Table) -> None:
    """Values as lines, intervals as bands."""
    first, *others = map(str, table.frame)
    for name, (colour, marker) in zip(others, cycle(LOOKS), strict=False):
        places, (value, low, high) = table.frame[first].astype(float), _ends(table, name).T
        axes.fill_between(places, low, high, color=colour, alpha=0.13)
        axes.plot(places, value, color=colour, marker=marker, markersize=4, label=name)
    axes.set(xlabel=first, ylim=(0, None))
    axes.grid(axis="y", color="#e6e6e6")
    if len(others) > 1:
        axes.legend(fontsize=8)


def _ends(table: Table, column: str) -> np.ndarray:
    """Value, low and high of every row, as the column's unit scales them; of a number alone all the same."""
    rows = []
    for cell in table.frame.get(column, [None] * len(table.frame)):
        made = cell if isinstance(cell, dict) else {"value": cell}
        value = nan if made["value"] is None else made["value"]
        rows.append([value, *(value if made.get(end) is None else made[end] for end in ("low", "high"))])
    return table.unit_of(column).value[0] * np.array(rows, float)


def png(picture: Picture) -> bytes:
    """Draw a picture as PNG."""
    buffer = io.BytesIO()
    draw(picture).savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
