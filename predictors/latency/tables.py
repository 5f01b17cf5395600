"""Latencies read from a table of measured seconds, between and beyond its grid points.

    between grid points    multilinear
    above the grid         along the last segment; a segment that falls counts as level there
    below the grid         the value at the edge

Median and both quartiles are read each on their own; beyond the grid, where their lines may cross, the spread is widened to hold
the median.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

QUARTILES = ("median", "low", "high")


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
