"""Delayed trees that a controller may choose among, and their prices.

    (K, L1, L2)    a trunk of L1 tokens, then K i.i.d. rollouts of L2 tokens from its end
    chain of L     K = 1 or L2 = 0; written (1, L, 0)

Equal trees under other numbers are one action: an action set has none twice. Steps are priced by `predictors.latency.prices`;
choosing costs extra, whatever is chosen. Source: paper 004, Eq. 8; specification of verification, section 7. Shape suffixes: A
actions, T contexts, B places.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, order=True)
class Action:
    """Delayed tree: ``k`` rollouts of ``l2`` tokens after a trunk of ``l1``; a chain always has ``k = 1`` and ``l2 = 0``.

    Examples
    --------
    >>> Action(1, 2, 3), Action(4, 1, 2).depth
    (Action(k=1, l1=5, l2=0), 3)
    """

    k: int
    l1: int
    l2: int

    def __post_init__(self) -> None:
        k, l1, l2 = self.k, self.l1, self.l2
        if k < 1 or l1 < 0 or l2 < 0 or l1 + l2 < 1:
            raise ValueError(
                f"a delayed tree needs k >= 1, l1 >= 0, l2 >= 0 and l1 + l2 >= 1, got k={k}, l1={l1}, l2={l2}."
            )
        if k == 1 or l2 == 0:
            for name, value in (("k", 1), ("l1", l1 + l2), ("l2", 0)):
                object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        return self.l1 + self.l2

    @property
    def is_chain(self) -> bool:
        return self.l2 == 0

    @property
    def most_nodes(self) -> int:
        """Number of nodes if no rollouts meet."""
        return self.l1 + self.k * self.l2

    @property
    def name(self) -> str:
        """Name of the tree, such as ``chain-4`` or ``delayed-3.1.2`` (K.L1.L2)."""
        return f"chain-{self.l1}" if self.is_chain else f"delayed-{self.k}.{self.l1}.{self.l2}"


@dataclass(frozen=True)
class ActionSet:
    """Trees to choose among: chains of ``chains`` tokens, and ``k`` x ``l1`` x ``l2`` delayed trees (paper 004: k 1 to 4, l1 and
    l2 0 to 8, without ``chains``); none of more than ``max_nodes`` nodes."""

    chains: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
    k: tuple[int, ...] = (2, 4)
    l1: tuple[int, ...] = (0, 1, 3)
    l2: tuple[int, ...] = (1, 2, 4)
    max_nodes: int = 32

    def __post_init__(self) -> None:
        if not self.actions:
            raise ValueError(
                f"an action set needs at least one tree of 1 to {self.max_nodes} nodes, got none in {self}."
            )

    @property
    def actions(self) -> tuple[Action, ...]:
        """All trees of the set, chains first, none twice."""
        chains = [(1, length, 0) for length in self.chains]
        trees = [(k, l1, l2) for k in self.k for l1 in self.l1 for l2 in self.l2 if l1 + l2]
        known = sorted({Action(*numbers) for numbers in chains + trees})
        return tuple(action for action in known if action.most_nodes <= self.max_nodes)


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
