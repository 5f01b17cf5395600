"""Which candidate is fastest: the clock's speed-ups over plain decoding and those that replay predicts, each by its precision.

    clock       m_a = log of the ratio of sums over the blocks that a and plain decoding share (`pipelines.evidence.gain`)
    replay      p_a = log of the predicted rates' ratio
    model       m_a = p_a + b + e_a + n_a,    e_a ~ (0, τ²),    n_a ~ (0, σ² / D_a)
    speed-up    θ_a = t_a m_a + (1 - t_a) (p_a + b),    t_a = τ² / (τ² + σ² / D_a);    θ_a = p_a + b without a clock

b is by how much replay is wrong in all candidates alike, as prices of another hour are; τ by how much in each; σ²/D_a is what D_a
documents leave of the clock's noise. σ² is pooled over candidates, as a handful of documents say little about one alone. It holds
plain decoding's own noise, too, which all candidates share and b takes up: so replay counts for a little more than it must.
τ and b are those of `pipelines.evidence.pooling`, whose effects are b + e_a: θ_a is its mean over what the candidates that were
timed say of both. Source: Fay and Herriot, Estimates of income for small places, 1979.

Shape suffixes: A candidates, T values of τ.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.evidence.estimate import Estimate
from pipelines.evidence.gain import gain
from pipelines.evidence.pooling import PooledEffects
from pipelines.evidence.timed_blocks import TimedBlocks
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.candidates import Candidate, plain

TINY = 1e-12  # a variance: clocks without any noise are no clocks
GRID_T = np.linspace(0.02, 4.0, 200)  # τ over its scale


@dataclass(frozen=True)
class Speedup:
    """Over plain decoding, as logarithms: what was ``predicted``, what was ``measured`` on so many ``documents`` (``None``: on
    fewer than two), and both together, with a standard ``error``."""

    predicted: float
    measured: float | None
    documents: int
    value: float
    error: float


class ReplayError:
    """How far replay is from the clock, by candidates that have both; ``scale``: how far before any was timed."""

    def __init__(self, predicted_A: np.ndarray, clock: Iterable[Estimate], scale: float) -> None:
        estimates = list(clock)
        documents_A, freedom_A, value_A, error_A = (
            np.array([getattr(one, name) for one in estimates]) for name in ("documents", "freedom", "value", "error")
        )
        self.noise = (
            max(TINY, float((freedom_A * documents_A * error_A**2).sum() / freedom_A.sum())) if estimates else 0.0
        )
        self.errors = PooledEffects(value_A - predicted_A, self.noise / documents_A, scale, GRID_T)

    def combined(self, predicted: float, clock: Estimate | None) -> Speedup:
        """A candidate's speed-up by replay and, if it was timed, by the clock."""
        errors, measured, documents = self.errors, None, 0
        wrong_T, variance_T = errors.mean_T, errors.tau_T**2 + errors.mean_variance_T
        if clock is not None:
            measured, documents = clock.value, clock.documents
            wrong_T, variance_T = errors.effect(measured - predicted, self.noise / documents)
        wrong = float(wrong_T @ errors.weight_T)
        error = math.sqrt(float((variance_T + (wrong_T - wrong) ** 2) @ errors.weight_T))
        return Speedup(predicted, measured, documents, predicted + wrong, error)

    @property
    def spread(self) -> float:
        """The mean of τ: candidates that are closer than this are not told apart."""
        return float(self.errors.tau_T @ self.errors.weight_T)

    def to_record(self) -> dict[str, float]:
        """The means of b and τ, and σ, as JSON."""
        bias = float(self.errors.mean_T @ self.errors.weight_T)
        return {"bias": bias, "spread": self.spread, "noise": math.sqrt(self.noise)}


def clocked(rows: Rows) -> dict[str, Estimate]:
    """Gains over plain decoding at one sampling setting, of every arm that shares blocks of two documents with it."""
    if not any(row["arm"] == PLAIN for row in rows):
        return {}
    blocks = TimedBlocks.of(rows)
    arms = [arm for arm in blocks.arms if arm != PLAIN and shared_documents(blocks, arm, PLAIN) > 1]
    return {arm: gain(blocks, arm, PLAIN) for arm in arms}


def shared_documents(blocks: TimedBlocks, *arms: str) -> int:
    """Number of documents of the blocks in which all of ``arms`` were timed."""
    if any(arm not in blocks.arms for arm in arms):
        return 0
    return len(set(blocks.document_B[blocks.shared(*arms)].tolist()))


def speedups(found: Iterable[Candidate], rows: Rows, scale: float) -> tuple[dict[str, Speedup], ReplayError]:
    """By candidate, from decodes at one sampling setting; plain decoding's own is 0."""
    some = list(found)
    base = plain(some).predicted
    predicted = {one.name: math.log(one.predicted / base) for one in some if one.name != PLAIN}
    clock = clocked([row for row in rows if row["arm"] == PLAIN or row["arm"] in predicted])
    replay = ReplayError(np.array([predicted[name] for name in clock]), clock.values(), scale)
    made = {name: replay.combined(value, clock.get(name)) for name, value in predicted.items()}
    return made | {PLAIN: Speedup(0.0, None, 0, 0.0, 0.0)}, replay


def fastest(found: Iterable[Candidate], by_name: Mapping[str, Speedup], tie: float = 0.0) -> Candidate:
    """The fastest of ``found``; of those whose logarithms are smaller by ``tie`` at most, the plainest."""
    some = list(found)
    best = max(by_name[one.name].value for one in some)
    tied = [one for one in some if by_name[one.name].value >= best - tie]
    return min(tied, key=lambda one: (one.complexity, -by_name[one.name].value))
