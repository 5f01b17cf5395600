"""Delayed trees as actions with a price: what the selector compares. Steps are priced by `predictors.latency.prices`; choosing
costs extra, whatever is chosen. Shape suffixes: A actions, T contexts, B places.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from predictors.latency.profile import LatencyProfile


@dataclass(frozen=True)
class Traffic:
    """Means over an action's trees."""

    nodes: float
    fed: float  # of them those on branch levels that a further level hangs under


@dataclass(frozen=True)
class Prices:
    """Seconds of steps by context, and the latency profile that they were computed from."""

    contexts: tuple[int, ...]
    action_seconds: tuple[tuple[float, ...], ...]  # [T, A] of whole steps
    decision_seconds: float  # what choosing one adds to a step
    profile_hash: str

    def __post_init__(self) -> None:
        sizes = {len(seconds_A) for seconds_A in self.action_seconds}
        if len(self.action_seconds) != len(self.contexts) or len(sizes) != 1:
            raise ValueError(
                f"prices need a row of as many actions for each of {len(self.contexts)} contexts, got {len(self.action_seconds)} "
                f"rows of {sorted(sizes)}."
            )

    def at(self, context: float) -> np.ndarray:
        """Seconds of every action's step [A] behind ``context`` cached tokens; beyond the contexts those of the nearest."""
        return self.rows(np.array([context]))[0]

    def rows(self, contexts_B: np.ndarray) -> np.ndarray:
        """Seconds of actions at many contexts [B, A]."""
        grid_T = np.array(self.contexts, dtype=np.float64)
        place_B = np.interp(contexts_B, grid_T, np.arange(len(grid_T)))
        left_B = np.minimum(place_B.astype(int), max(0, len(grid_T) - 2))
        share_B1 = (place_B - left_B)[:, None]
        right_B = np.minimum(left_B + 1, len(grid_T) - 1)
        return (1 - share_B1) * self._table[left_B] + share_B1 * self._table[right_B]

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array(self.action_seconds)

    def largest_factor(self, other: "Prices") -> float:
        """Return by which factor the price of one action in units of another differs at most: 1 where all choices cost alike."""
        contexts_T = np.array(self.contexts, dtype=np.float64)
        change_TA = np.log(self.rows(contexts_T) / other.rows(contexts_T))
        return float(np.exp((change_TA.max(axis=1) - change_TA.min(axis=1)).max()))


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
