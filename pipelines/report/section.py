"""What a section of the report is: a finding, tables of values and pictures. `pipelines.report.page` renders it.

A cell is a text, a number, a truth value, an `Interval` or nothing. The name of its column says how it is written (`UNITS`).
"""

from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from operator import ge, le
from typing import TYPE_CHECKING, Any

from pipelines.report.text import GAIN, MS, NUMBER, SHARE, TEXT, TIMES, UNDEFINED, WHOLE, Interval, shown
from predictors.rounds import PHASES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = str | float | int | bool | Interval | None
Row = Mapping[str, Cell]  # by column
Metric = Callable[..., Cell]  # of what a row stands for
SPEEDUP, OVER_CHAIN, EFFICIENCY = "speed-up over plain", "gain over best static chain", "block efficiency"
COLUMNS = {  # by unit; columns whose names begin with gain are gains, others are texts and counts
    TIMES: f"{SPEEDUP}; speed-up; over plain; static over plain; rule over plain; oracle over plain; "
    "over HF prompt lookup; over lookahead; over self_draft; replay alone, validation; with the clock, validation; "
    "pass of 5 tokens over one; replayed; measured",
    GAIN: "over best static γ; over static chain; rule over static; oracle over static; regret; "
    "drift; its rule; forced; at no cost; paper's; oracle",
    SHARE: "rollback rate; deciding; upkeep; target idle; hits per branch point; passes with candidates; "
    "gap closed; same text; median error; largest error; median speedup error; largest speedup error; "
    + "; ".join((*PHASES, "rest")),
    NUMBER: f"{EFFICIENCY}; m_incl; drafted per round; tokens per pass; tokens of those; "
    "guesses and candidates per pass; macro AUC; accuracy; "
    "macro F1; ECE; AUROC; rank correlation; ratio; value; draft steps per target pass",
    WHOLE: "tokens/s; measured, tokens/s; predicted, tokens/s",
    MS: "target pass, ms; draft step, ms; drafted token, ms; ms/token",
}
UNITS = {name: unit for unit, names in COLUMNS.items() for name in names.split("; ")}


@dataclass(frozen=True)
class Table:
    """``rows`` of cells by column; ``marked`` are the first cells of those that stand out; ``unit``: of columns that `UNITS` does
    not name. Texts and truth values are written as they are, whatever the unit."""

    rows: Sequence[Row]
    caption: str = ""
    marked: Set[Cell] = frozenset()
    unit: str = TEXT

    @cached_property
    def columns(self) -> list[str]:
        """Columns of all rows; a row may lack some."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @cached_property
    def filled(self) -> list[str]:
        """The columns that are written: the first, which names the rows, and those in which some row has a value."""
        first, *others = self.columns
        return [first, *(name for name in others if any(row.get(name) is not None for row in self.rows))]

    def unit_of(self, column: str) -> str:
        """Unit in which a column's values are written; the first column names the rows."""
        if column == self.columns[0]:
            return TEXT
        return GAIN if column.startswith("gain") else UNITS.get(column, self.unit)

    def is_marked(self, row: Row) -> bool:
        """Tell whether a row stands out."""
        return row[self.columns[0]] in self.marked

    def only(self, names: Container[Cell]) -> "Table":
        """The rows whose first cell is one of these."""
        return replace(self, rows=[row for row in self.rows if row[self.columns[0]] in names])

    def record(self) -> dict[str, Any]:
        """Return the table for JSON: every row by column names."""
        rows = [{name: row.get(name) for name in self.columns} for row in self.rows]
        return {"caption": self.caption, "columns": self.columns, "rows": rows}


def grid(
    label: str, places: Mapping[Any, tuple[Any, ...]], columns: Mapping[str, Metric], caption: str = "", **options: Any
) -> Table:
    """A row for every place, by name below ``label``; its cells are the columns' functions of what the place consists of."""
    rows: list[Row] = []
    for name, place in places.items():
        cells = {column: value(*place) for column, value in columns.items()}
        rows.append({label: name} | {column: None if cell == UNDEFINED else cell for column, cell in cells.items()})
    return Table(rows, caption, **options)


def column(tables: Sequence[Table], name: str) -> dict[str, Interval]:
    """Intervals of a column, by the first cell of their row and the first words of their table's caption."""
    return {
        " at ".join(filter(None, [str(row[table.columns[0]]), table.caption.partition(";")[0]])): cell
        for table in tables
        for row in table.rows
        if isinstance(cell := row.get(name), dict)
    }


@dataclass(frozen=True)
class Picture:
    """A figure with its ``name`` (of the file, too) and ``caption``."""

    name: str
    figure: "Figure"
    caption: str = ""


@dataclass(frozen=True)
class Check:
    """A bar that the project holds itself to: ``measured`` at least ``bar``, or ``at_most``."""

    name: str
    measured: Interval
    bar: float
    unit: str = TIMES
    at_most: bool = False

    def row(self) -> Row:
        """Say in a row whether the measured value meets the bar, and whether its whole interval does."""
        meets, limit = (le, "most") if self.at_most else (ge, "least")
        met = {end: None if value is None else meets(value, self.bar) for end, value in self.measured.items()}
        surely = None if None in met.values() else all(met.values())
        bar, measured = f"at {limit} {shown(self.bar, self.unit)}", shown(self.measured, self.unit)
        return {"check": self.name, "bar": bar, "measured": measured, "met": met["value"], "surely": surely}


@dataclass(frozen=True)
class Section:
    """``name``: its anchor and key; ``finding``: what it comes to, in one sentence; ``notes``: how to read it; ``printed``: fixed
    width; ``checks`` go to a section of their own. Tables without rows are left out."""

    name: str
    title: str
    finding: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    printed: str = ""
    checks: Sequence[Check] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", [table for table in self.tables if table.rows])

    def record(self) -> dict[str, Any]:
        """Return the section for JSON: all but the pictures."""
        return {"title": self.title, "finding": self.finding, "tables": [table.record() for table in self.tables]}
