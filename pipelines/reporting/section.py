"""What a section of the report is: a finding, tables of values and pictures. `pipelines.reporting.page` renders it.

A cell is a text, a number, a truth value, an `Interval` or nothing. Its column's unit says how it is written
(`pipelines.reporting.text`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.reporting.text import TEXT, TIMES, Interval, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | bool | Interval | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Column:
    """A column's name and its unit."""

    name: str
    unit: str = TEXT


@dataclass(frozen=True)
class Table:
    """``rows`` of cells under ``columns``; ``marked`` rows stand out."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    marked: frozenset[int] = frozenset()

    def record(self) -> dict[str, Any]:
        """For JSON: every row by column names."""
        names = [column.name for column in self.columns]
        return {
            "caption": self.caption,
            "columns": names,
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }


@dataclass(frozen=True)
class Picture:
    """A figure with its ``name`` (of the file, too) and ``caption``."""

    name: str
    figure: "Figure"
    caption: str = ""


@dataclass(frozen=True)
class Check:
    """What the project holds itself to: ``measured`` at least ``bar``, or ``at_most``."""

    name: str
    measured: Interval
    bar: float
    unit: str = TIMES
    at_most: bool = False

    def row(self) -> Row:
        """Name, bar, measured value, whether it meets the bar, and whether its whole interval does."""
        met = {end: None if value is None else self._meets(value) for end, value in self.measured.items()}
        surely = None if None in met.values() else all(met.values())
        bar = f"at {'most' if self.at_most else 'least'} {shown(self.bar, self.unit)}"
        return self.name, bar, shown(self.measured, self.unit), met["value"], surely

    def _meets(self, value: float) -> bool:
        return value <= self.bar if self.at_most else value >= self.bar


@dataclass(frozen=True)
class Section:
    """``name``: its anchor and key; ``finding``: what it comes to, in one sentence; ``notes``: how to read it; ``printed``: fixed
    width; ``checks`` go to a section of their own."""

    name: str
    title: str
    finding: str
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    printed: str = ""
    checks: tuple[Check, ...] = ()

    def record(self) -> dict[str, Any]:
        """For JSON: all but the pictures."""
        return {"title": self.title, "finding": self.finding, "tables": [table.record() for table in self.tables]}
