"""The latency profile: what the passes of one model pair and the work between them cost on one machine, in tables of seconds.

    cost ratio    c(l)    = target(1, l) / draft(1, l)      a target pass in draft steps, at context l
    verify ratio  v(n, l) = target(n, l) / target(1, l)     a pass over n tokens in passes over one

Between grid points a table is read multilinearly, above the grid along the last segment, where one that falls counts as level,
and below the grid at the edge. Median and quartiles are read each on their own; beyond the grid, where their lines may cross, the
spread is widened to hold the median.

Source: specification of drafting, sections 0 and 10. c is SpecBranch's; the paper on improved multi-candidate decoding calls its
inverse c. Here c is measured, never rounded to a whole number. No table says what passes cost while both models are at work.
"""

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from predictors.config import parse_config

QUARTILES = ("median", "low", "high")
SCHEMA = 2
REMEDY = "Measure the profile on this machine again (dvc repro)."
# Table -> axes. A pass costs `rows` or `tokens` nodes behind `context` committed tokens.
AXES = {
    "draft": ("rows", "context"),  # one draft pass over new nodes: 1 is a chain's step, more a level of a tree
    "draft_first": ("rows", "context"),  # a round's first, over all that was committed, of a draft that reads states
    "target": ("tokens", "context"),  # one target pass over the newest token and the drafted ones
    "draft_hugging_face": ("rows", "context"),  # the same by bare Hugging Face
    "target_hugging_face": ("tokens", "context"),
    "draft_prefill": ("tokens",),  # opening a state and committing a prompt
    "target_prefill": ("tokens",),
    "plain": ("context",),  # a token of plain decoding as it runs, behind passes of its own model
    "chain_drawing": ("drafted", "sampled"),  # a round's laws and draws; sampled: 0 greedy, 1 temperature 1
    "chain_verification": ("drafted", "sampled"),  # the rest of a round outside the models
    "tree_drawing": ("drafted", "sampled"),  # drafted counts distinct nodes
    "tree_verification": ("drafted", "sampled"),
    # verification of sampled trees by other rules than traversal
    "verification_nss": ("drafted",),
    "verification_naive_tree": ("drafted",),
    "verification_spectr": ("drafted",),
    "verification_specinfer": ("drafted",),
    "verification_khisti": ("drafted",),
    # branch-parallel decoding: work of the draft outside its passes, and of the verdict on candidates
    "branch_candidates": ("rows", "sampled"),  # from the law at the branch point to as many candidates as rows
    "branch_drawing": ("rows", "sampled"),  # one level of branches behind them: laws, draws, bookkeeping
    "branch_verdict": ("candidates", "sampled"),
    "noise": ("rows",),  # perturbing a pass's rows in invariant sampling, laws included
    "reading": ("entropy",),  # a draft law's confidence by the host, and with 1 its entropy too
    "predictor": ("features",),  # one decision of a small MLP, with all that it reads
    "guessing": ("guessed",),  # a model drafting for itself: a pass's candidates, and upkeep of so many guesses
    "stopping": ("features",),  # asking a stop model of so many numbers
    "survival": ("positions",),  # asking the survival model about so many tokens behind the last draft pass
    "grow": ("levels",),  # choosing a chain of so many levels and its leaves
    "selection": ("features",),  # choosing a delayed tree from so many numbers of hidden states, and both models' laws
}
FIRST = "draft_first"
DRAFT_PASSES = ("draft", FIRST, "draft_prefill")


@dataclass(frozen=True)
class Latency:
    """Median ``seconds`` and their quartiles ``low`` and ``high``."""

    seconds: float
    low: float
    high: float

    def speeds(self, tokens: float) -> tuple[float, float, float]:
        """Tokens per second if ``tokens`` took so long: by the median, the slow and the fast quartile."""
        return tokens / self.seconds, tokens / self.high, tokens / self.low


@dataclass(frozen=True, eq=False)
class LatencyTable:
    """Measured seconds on a grid; `ValueError` for one that is none.

    Examples
    --------
    >>> seconds = np.array([0.001, 0.003])
    >>> LatencyTable({"tokens": (1, 5)}, seconds, seconds, seconds, calls=40).at(tokens=2).seconds
    0.0015
    """

    axes: Mapping[str, Sequence[int]]  # ascending whole numbers by name, in the order of the arrays' dimensions
    median: np.ndarray  # seconds [grid of the first axis, of the second, ...] of the calls
    low: np.ndarray  # their lower quartile
    high: np.ndarray  # their upper one
    calls: int  # timed ones behind every cell

    def __post_init__(self) -> None:
        for name, grid in self.axes.items():
            _require_grid(name, grid)
        shape = tuple(len(grid) for grid in self.axes.values())
        for name, array in (("median", self.median), ("low", self.low), ("high", self.high)):
            if np.shape(array) != shape:
                sizes = ", ".join(f"{axis}: {size}" for axis, size in zip(self.axes, shape, strict=True))
                raise ValueError(f"{name} has the shape {np.shape(array)}, which does not fit the axes ({sizes}).")
            wrong = array[~(np.isfinite(array) & (array > 0))]
            if wrong.size:
                raise ValueError(f"{name} holds {wrong[0]}, and a latency is a finite number of seconds > 0.")
        if not ((self.low <= self.median) & (self.median <= self.high)).all():
            raise ValueError("a median lies outside its quartiles: low <= median <= high must hold in every cell.")
        if self.calls < 1:
            raise ValueError(f"calls must be >= 1, got {self.calls}.")

    def at(self, **coordinates: float) -> Latency:
        """The latency at one coordinate per axis; `ValueError` naming the axes for a missing or unknown one."""
        return _at(self, tuple(coordinates.items()))

    @cached_property
    def _values(self) -> np.ndarray:
        """Median, low and high [axes in alphabetical order ..., 3]: beyond the grid the order of reading matters."""
        table = self.with_axes(sorted(self.axes))
        return np.stack([table.median, table.low, table.high], axis=-1)

    def with_axes(self, names: Sequence[str]) -> "LatencyTable":
        """Return the table with its axes in the order of ``names``; `ValueError` if they are not its axes."""
        if set(names) != set(self.axes):
            raise ValueError(f"the axes are {', '.join(self.axes)}, and must be {', '.join(names)}.")
        if list(names) == list(self.axes):
            return self
        order = [list(self.axes).index(name) for name in names]
        median, low, high = (np.transpose(array, order) for array in (self.median, self.low, self.high))
        return LatencyTable({name: self.axes[name] for name in names}, median, low, high, self.calls)

    def scaled(self, factor: float) -> "LatencyTable":
        """Return the table with all seconds times ``factor``."""
        return LatencyTable(self.axes, factor * self.median, factor * self.low, factor * self.high, self.calls)

    def of(self, seconds: np.ndarray) -> "LatencyTable":
        """Return a table of the same grid with these ``seconds`` alone, without a spread."""
        return LatencyTable(self.axes, seconds, seconds, seconds, self.calls)

    def to_record(self) -> dict[str, Any]:
        """A JSON mapping, its axes in alphabetical order: a writer that sorts keys then leaves them as the arrays have them."""
        table = self.with_axes(sorted(self.axes))
        return {
            "axes": {name: [int(point) for point in grid] for name, grid in table.axes.items()},
            "median": table.median.tolist(),
            "low": table.low.tolist(),
            "high": table.high.tolist(),
            "calls": table.calls,
        }


@lru_cache(maxsize=2**16)  # replay reads a few thousand places millions of times
def _at(table: LatencyTable, coordinates: tuple[tuple[str, float], ...]) -> Latency:
    axes, places, values = table.axes, dict(coordinates), table._values
    if places.keys() != axes.keys():
        raise ValueError(f"this table takes the coordinates {', '.join(axes)}, got {sorted(places)}.")
    for name in sorted(axes):
        values = _read(values, axes[name], places[name])
    seconds, low, high = values.tolist()
    return Latency(seconds, min(low, seconds), max(high, seconds))


def _require_grid(name: str, grid: Sequence[int]) -> None:
    whole = isinstance(grid, Sequence) and bool(grid) and all(isinstance(point, int | np.integer) for point in grid)
    if not whole or any(right <= left for left, right in pairwise(grid)):
        raise ValueError(f"axis {name} must be ascending whole numbers, got {grid!r}.")


def _read(values: np.ndarray, grid: Sequence[int], coordinate: float) -> np.ndarray:
    """``values`` [grid, ...] at ``coordinate`` of their first dimension."""
    if len(grid) == 1 or coordinate <= grid[0]:
        return values[0]
    right = min(bisect_left(grid, coordinate), len(grid) - 1)
    share = (coordinate - grid[right - 1]) / (grid[right] - grid[right - 1])
    if share > 1:
        return values[right] + (share - 1) * np.maximum(values[right] - values[right - 1], 0)
    # weights rather than a slope: exact at grid points
    return (1 - share) * values[right - 1] + share * values[right]


@dataclass(frozen=True, eq=False)
class LatencyProfile:
    """A pair's measured latencies on a machine. A profile may lack tables of `AXES`, and hold others."""

    tables: Mapping[str, LatencyTable]  # those of `AXES` must have those axes, and are brought into their order
    pair: str
    settings: Mapping[str, Any]  # of the measurement
    provenance: Mapping[str, Any]
    noise: tuple[str, ...] = ()  # what spoke against the tables when they were written (`predictors.latency.soundness`)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        ordered = {}
        for name, table in self.tables.items():
            try:
                ordered[name] = table.with_axes(AXES.get(name, tuple(table.axes)))
            except ValueError as error:
                raise ValueError(f"table {name}: {error}") from error
        object.__setattr__(self, "tables", ordered)

    def table(self, name: str) -> LatencyTable:
        """Table ``name``; `ValueError` naming the tables there are."""
        if name not in self.tables:
            raise ValueError(
                f"the profile of {self.pair} has no table {name!r}, only {', '.join(self.tables)}. {REMEDY}"
            )
        return self.tables[name]

    def latency(self, name: str, **coordinates: float) -> Latency:
        """Table ``name`` at ``coordinates``; `ValueError` naming the tables there are, or this one's axes."""
        table = self.table(name)
        try:
            return table.at(**coordinates)
        except ValueError as error:
            raise ValueError(f"table {name!r}: {error}") from error

    def cost_ratio(self, context: float) -> float:
        """c: one target pass over one token, in draft steps."""
        target = self.latency("target", tokens=1, context=context)
        return target.seconds / self.latency("draft", rows=1, context=context).seconds

    def at_cost_ratio(self, ratio: float, context: float) -> "LatencyProfile":
        """The profile of a machine on which c is ``ratio`` behind ``context`` tokens: all passes of the draft scaled alike,
        everything else as it is."""
        if not ratio > 0:
            raise ValueError(f"a cost ratio is > 0, got {ratio}.")
        factor = self.cost_ratio(context) / ratio
        scaled = {name: table.scaled(factor) for name, table in self.tables.items() if name in DRAFT_PASSES}
        return replace(self, tables={**self.tables, **scaled})

    def only(self, quartile: str) -> "LatencyProfile":
        """The profile with one of `QUARTILES` of every cell alone."""
        tables = {name: table.of(getattr(table, quartile)) for name, table in self.tables.items()}
        return replace(self, tables=tables)

    def verify_ratio(self, tokens: float, context: float) -> float:
        """v: one target pass over ``tokens``, in passes over one token."""
        wide = self.latency("target", tokens=tokens, context=context)
        return wide.seconds / self.latency("target", tokens=1, context=context).seconds

    @property
    def profile_hash(self) -> str:
        """SHA-256 of the tables alone: where and when they were measured does not count."""
        tables = {name: table.to_record() for name, table in self.tables.items()}
        return hashlib.sha256(json.dumps(tables, sort_keys=True, allow_nan=False).encode()).hexdigest()

    def to_record(self) -> dict[str, Any]:
        """A JSON mapping; its keys may be sorted."""
        return {
            "schema": SCHEMA,
            "pair": self.pair,
            "tables": {name: table.to_record() for name, table in self.tables.items()},
            "settings": dict(self.settings),
            "provenance": dict(self.provenance),
            "noise": list(self.noise),
        }

    @staticmethod
    def from_record(record: Mapping[str, Any], where: str) -> "LatencyProfile":
        """Parse what `to_record` wrote; a `ValueError` begins with ``where``."""
        if isinstance(record, Mapping) and record.get("schema") != SCHEMA:
            raise ValueError(f"{where}: schema {record.get('schema')} is not this version's, which reads {SCHEMA}.")
        return parse_config(LatencyProfile, record, where)


def undisturbed(profile: LatencyProfile) -> LatencyProfile:
    """The profile without what neighbours on the machine added, to some cells more than to others: fast quartiles, and no cell
    dearer than a larger one (more rows, tokens, nodes or context)."""
    tables = {}
    for name, table in profile.tables.items():
        seconds = table.low
        for axis in range(seconds.ndim):
            seconds = np.flip(np.minimum.accumulate(np.flip(seconds, axis), axis), axis)
        tables[name] = table.of(seconds)
    return replace(profile, tables=tables)


def read_profile(path: str | Path) -> LatencyProfile:
    """Read a profile's JSON file; `ValueError` with the remedy if it is missing, damaged or not a profile."""
    try:
        record = json.loads(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{path}: no latency profile can be read there ({error.strerror}). {REMEDY}") from error
    except ValueError as error:
        raise ValueError(f"{path}: damaged latency profile ({error}). {REMEDY}") from error
    try:
        return LatencyProfile.from_record(record, f"{path}: profile")
    except ValueError as error:
        raise ValueError(f"{error} {REMEDY}") from error
