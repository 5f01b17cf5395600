"""Sections of the report: a finding, tables as pandas frames, and pictures over tables. How a value is written is decided here.

A cell is a text, a number, a truth value, an `Interval` or nothing, and the name of its column gives its unit (`UNITS`):

TIMES    1.62x (1.55–1.70)         GAIN     −2.0 % (−5.0…+1.0)     SHARE    12 % (8–15)
NUMBER   1.62 (1.55–1.70)          WHOLE    1620 (1550–1700)       TEXT     as it is; truth values as yes and no
MS       1.62 (1.55–1.70), of seconds, three digits                COARSE   −2 % (−15…+11), a gain known to ten points or less
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial
from typing import Any

import pandas as pd

from pipelines.measuring.names import CHAIN, PLAIN
from predictors.rounds import PHASES

Interval = dict[str, float | None]  # value, low, high; all None where undefined
Row = Mapping[str, Any]  # cells by column
UNDEFINED: Interval = {"value": None, "low": None, "high": None}
UNKNOWN = "–"
WIDE = 0.1  # an interval of a gain without decimals


class Unit(Enum):
    """How a number is written: its scale, its form, and what follows it."""

    TEXT = 1, "{}", ""
    TIMES = 1, "{:.2f}", "x"
    GAIN = 100, "{:+.1f}", " %"
    COARSE = 100, "{:+.0f}", " %"
    SHARE = 100, "{:.0f}", " %"
    NUMBER = 1, "{:.2f}", ""
    WHOLE = 1, "{:.0f}", ""
    MS = 1000, "{:#.3g}", ""


COLUMNS = {  # by unit; gain … and … over plain are gains and speed-ups, all others texts and counts
    Unit.TIMES: "over HF prompt lookup; pass of 5 tokens over one",
    Unit.GAIN: "over static chain; rule over static; oracle over static; regret; drift; its rule; forced; at no cost; oracle",
    Unit.SHARE: "rollback rate; deciding; upkeep; target idle; hits per branch point; passes with candidates; gap closed; "
    "median error; largest error; " + "; ".join((*PHASES, "rest")),
    Unit.NUMBER: "block efficiency; m_incl; drafted per round; tokens per pass; guesses and candidates per pass; AUC; ECE; "
    "rank correlation; draft steps per target pass",
    Unit.WHOLE: "tokens/s",
    Unit.MS: "target pass, ms; draft step, ms; ms/token",
}
UNITS = {name: unit for unit, names in COLUMNS.items() for name in names.split("; ")}
NAMES = {PLAIN: "plain decoding", CHAIN: "best static chain"}  # of arms; all others as `params.yaml` names them


def arm_name(arm: str) -> str:
    """Name an arm as a person reads it."""
    return NAMES.get(arm, arm)


def shown(value: Any, unit: Unit = Unit.TEXT) -> str:
    """Write a cell.

    Examples
    --------
    >>> shown({"value": 1.62, "low": 1.55, "high": 1.7}, Unit.TIMES), shown(0.123, Unit.SHARE), shown(None), shown(True)
    ('1.62x (1.55–1.70)', '12 %', '–', 'yes')
    """
    if isinstance(value, dict):
        if None in value.values():
            return shown(value["value"], unit)
        unit = Unit.COARSE if unit == Unit.GAIN and value["high"] - value["low"] > WIDE else unit
        low, high = (_number(value[end], unit) for end in ("low", "high"))
        return f"{shown(value['value'], unit)} ({low}{'…' if low[0] in '+−' else '–'}{high})"
    if pd.isna(value):
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if unit == Unit.TEXT or isinstance(value, str) else _number(value, unit) + unit.value[2]


def _number(value: float, unit: Unit) -> str:
    scale, form, _ = unit.value
    form = "{:.0f}" if unit == Unit.MS and abs(scale * value) >= 99.5 else form
    return form.format(scale * value).replace("-", "−")


def listed(words: Sequence[str]) -> str:
    """List words in a sentence.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed([])
    ('a, b and c', 'none')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]])) or "none"


def changed(interval: Interval, function: Callable[[float], float]) -> Interval:
    """Apply an increasing ``function`` to the value and to both ends."""
    return {end: None if value is None else function(value) for end, value in interval.items()}


def winners(unit: Unit, bar: float, values: Mapping[str, Interval | None]) -> str:
    """Say whose whole interval lies above ``bar``, and whose estimate is the highest.

    Examples
    --------
    >>> winners(Unit.GAIN, 0.0, {"a": UNDEFINED | {"value": 0.1}, "b": {"value": 0.2, "low": 0.1, "high": 0.3}})
    'b; highest estimate: b, +20 % (+10…+30)'
    """
    known = {name: made for name, made in values.items() if made and made["value"] is not None}
    best = max(known, key=lambda name: known[name]["value"] or 0.0, default=None)
    sure = [name for name, made in known.items() if made["low"] is not None and made["low"] > bar]
    return f"{listed(sure)}; highest estimate: {'none' if best is None else f'{best}, {shown(known[best], unit)}'}"


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Make a table's frame: the first column names its rows; others are left out where no row has a value."""
    cells = [{name: None if cell == UNDEFINED else cell for name, cell in row.items()} for row in rows]
    return pd.DataFrame(cells, dtype=object).dropna(axis=1, how="all")


@dataclass(frozen=True)
class Table:
    """A ``frame`` of cells (`frame`); ``marked``: first cells of rows that stand out; ``unit`` of columns without an own one."""

    name: str  # key within its section
    frame: pd.DataFrame
    caption: str = ""
    marked: Collection[str] = ()
    unit: Unit = Unit.TEXT

    def unit_of(self, column: str) -> Unit:
        """Unit in which a column's values are written; the first column names the rows."""
        if column == self.frame.columns[0]:
            return Unit.TEXT
        if column.endswith("over plain"):
            return Unit.TIMES
        return Unit.GAIN if column.startswith("gain") else UNITS.get(column, self.unit)

    @cached_property
    def texts(self) -> pd.DataFrame:
        """Every cell as people read it."""
        return self.frame.apply(lambda cells: cells.map(partial(shown, unit=self.unit_of(str(cells.name)))))

    def record(self) -> Row:
        """Return the table for JSON: every row by column names."""
        rows = self.frame.where(self.frame.notna(), None).to_dict("records")
        return {"name": self.name, "caption": self.caption, "columns": [*self.frame], "rows": rows}


@dataclass(frozen=True)
class Picture:
    """A panel for each table, so many ``across``: intervals in its ``columns``, where ``line`` is no gain; or curves."""

    name: str  # of the file, too
    caption: str
    tables: Sequence[Table]
    columns: Sequence[str] = ()
    label: str = ""
    line: float = 0.0
    across: int = 3


@dataclass(frozen=True)
class Section:
    """``name``: its anchor and key; ``finding``: what it comes to, in one sentence; ``notes``: how to read it; ``printed``: fixed
    width. Tables without rows are left out."""

    name: str
    title: str
    finding: str
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    printed: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", [table for table in self.tables if len(table.frame)])

    def record(self) -> Row:
        """Return the section for JSON: all but the pictures."""
        return {"title": self.title, "finding": self.finding, "tables": [table.record() for table in self.tables]}


def markdown(section: Section, level: int = 2) -> str:
    """Write a section under a heading of that ``level``; marked rows are bold."""
    parts = [f"{'#' * level} {section.title}", section.finding, *section.notes]
    for table in section.tables:
        lines = [[*table.texts], ["---"] * len(table.texts.columns)]
        lines += [[f"**{cell}**" if row[0] in table.marked else cell for cell in row] for row in table.texts.to_numpy()]
        rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        parts += [f"{'#' * (level + 1)} {table.caption or table.name}", "\n".join(rows)]
    parts += [f"```\n{section.printed}\n```"] if section.printed else []
    return "\n\n".join([*parts, *(f"![{one.caption}]({one.name}.png)" for one in section.pictures)]) + "\n"
