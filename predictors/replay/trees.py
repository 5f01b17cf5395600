"""Static trees of distinct candidates on a recorded text: level l gives every node k_l children (k-configurations and forks).

The text's own token is among the children of the text's own node, and is kept, with probability h(k_l): at temperature 0 where it
is one of the draft's k_l likeliest, else where recursive rejection over k_l draws without replacement accepts it. Levels are
independent given the text, so

    P(N >= n | text) = Π_{l<=n} h(k_l)

which is exact for rule ``rrs_without_replacement``, and at temperature 0 for every rule. Source: specification of drafting,
section 5; `trace_collection.candidate_hits`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictors.latency.throughput import Shape
from predictors.replay.acceptance import accepted
from predictors.replay.text import RecordedText


@dataclass(frozen=True)
class LevelTree:
    """Children per node, level by level. A ``fork`` parts at the root and never again."""

    config: tuple[int, ...]

    @staticmethod
    def fork(width: int, depth: int) -> "LevelTree":
        """``width`` chains of ``depth`` tokens."""
        return LevelTree((width, *(1,) * (depth - 1)))

    def cut(self, levels: int) -> "LevelTree":
        """The first ``levels`` of it."""
        return LevelTree(self.config[:levels])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes by level."""
        return tuple(np.cumprod(self.config).tolist())

    @property
    def shape(self) -> Shape:
        """Passes of the draft, one per level, over the nodes above it; and nodes that the target verifies."""
        return Shape((1, *self.sizes[:-1]) if self.config else (), sum(self.sizes))


def tree_reached(text: RecordedText, start: int, config: Sequence[int]) -> np.ndarray:
    """P(N >= n | text) for n = 1, 2, … levels of a tree at row ``start``, as far as the text goes on."""
    hits_NC = text.columns["hits"][start - 1 : start - 1 + len(config)].astype(np.float64)
    if config and max(config) > hits_NC.shape[1]:
        raise ValueError(
            f"trees with {max(config)} candidates at a place cannot be replayed: {hits_NC.shape[1]} were recorded. Raise "
            "traces.positions.candidates and collect again."
        )
    return np.cumprod(hits_NC[np.arange(len(hits_NC)), np.asarray(config[: len(hits_NC)], dtype=int) - 1])


def tree_accepted(text: RecordedText, start: int, config: Sequence[int], uniform: float) -> int:
    """Accepted levels for a ``uniform`` number in [0, 1)."""
    return accepted(tree_reached(text, start, config), uniform)
