"""Which candidate is fastest: the clock's speed-ups over plain decoding and those that replay predicts, each by its precision.

    clock       m_a = log of the ratio of sums over the blocks that a and plain decoding share (`pipelines.gate.evidence.gain`)
    replay      p_a = log of the predicted rates' ratio
    model       m_a = p_a + b_g + e_a + n_a,    b_g ~ (b, ω²),    e_a ~ (0, τ²),    n_a ~ (0, σ² / D_a)
    speed-up    θ_a = t_a m_a + (1 - t_a) (p_a + b_g),    t_a = τ² / (τ² + σ² / D_a);    θ_a = p_a + b_g without a clock

b is by how much replay is wrong in all candidates alike, as prices of another hour are; b_g in those whose predictions rest on
basis g (`Candidate.basis`); τ by how much in each; σ²/D_a is what D_a documents leave of the clock's noise. σ² is pooled over
candidates, as a handful of documents say little about one alone. It holds plain decoding's own noise, too, which all candidates
share and b takes up: so replay counts for a little more than it must. ω is the stated scale of τ: three bases say little of it.
τ and b_g are those of `pipelines.gate.evidence.pooling`, whose effects are b_g + e_a: θ_a is its mean over what the candidates
that were timed say of both. Source: Fay and Herriot, Estimates of income for small places, 1979.

Shape suffixes: A candidates, T values of τ.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.gate.evidence.gain import Estimate, gain
from pipelines.gate.evidence.ledger import TimedBlocks
from pipelines.gate.evidence.pooling import UNKNOWN, PooledEffects
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.candidates import BUNDLE, WEIGHED, Candidate, plain

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

    def __init__(
        self, predicted_A: np.ndarray, basis_A: Sequence[str], clock: Iterable[Estimate], scale: float
    ) -> None:
        estimates = list(clock)
        documents_A, freedom_A, value_A, error_A = (
            np.array([getattr(one, name) for one in estimates]) for name in ("documents", "freedom", "value", "error")
        )
        self.scale, self.noise = scale, 0.0
        if estimates:
            self.noise = max(TINY, float((freedom_A * documents_A * error_A**2).sum() / freedom_A.sum()))
        self.errors = PooledEffects(value_A - predicted_A, self.noise / documents_A, scale, GRID_T, basis_A, scale)

    def combined(self, predicted: float, basis: str, clock: Estimate | None) -> Speedup:
        """A candidate's speed-up by replay and, if it was timed, by the clock."""
        measured, documents, estimate = None, 0, UNKNOWN
        if clock is not None:
            measured, documents = clock.value, clock.documents
            estimate = (measured - predicted, self.noise / documents)
        wrong_T, variance_T = self.errors.effect(*estimate, basis)
        wrong = self._mean(wrong_T)
        error = math.sqrt(self._mean(variance_T + (wrong_T - wrong) ** 2))
        return Speedup(predicted, measured, documents, predicted + wrong, error)

    @property
    def spread(self) -> float:
        """The mean of τ: candidates of one basis that are closer than this are not told apart."""
        return self._mean(self.errors.tau_T)

    @property
    def apart(self) -> float:
        """As ``spread``, for candidates of two bases: √(τ² + ω²)."""
        return math.hypot(self.spread, self.scale)

    def to_record(self) -> dict[str, Any]:
        """The means of b, of every b_g and of τ, and σ, as JSON."""
        bases = {name: self._mean(self.errors.group(name)[0]) for name in self.errors.groups}
        bias = self._mean(self.errors.all.mean_T)
        return {"bias": bias, "bases": bases, "spread": self.spread, "noise": math.sqrt(self.noise)}

    def _mean(self, value_T: np.ndarray) -> float:
        return float(value_T @ self.errors.weight_T)


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
    basis = {one.name: one.basis for one in some}
    clock = clocked([row for row in rows if row["arm"] == PLAIN or row["arm"] in predicted])
    timed = np.array([predicted[name] for name in clock])
    replay = ReplayError(timed, [basis[name] for name in clock], clock.values(), scale)
    made = {name: replay.combined(value, basis[name], clock.get(name)) for name, value in predicted.items()}
    return made | {PLAIN: Speedup(0.0, None, 0, 0.0, 0.0)}, replay


def fastest(
    found: Iterable[Candidate], by_name: Mapping[str, Speedup], tie: float = 0.0, apart: float = 0.0
) -> Candidate:
    """The fastest of ``found``; of those whose logarithms are smaller by ``tie`` at most, the plainest. First so within every
    basis; then among these, by ``apart`` where that is more: for bundles of two bases neither is the plainer one. Of plain
    decoding nothing is predicted, so that ``tie`` holds for it."""
    value: dict[str, float] = {}
    bases: dict[str, list[Candidate]] = {}
    for one in found:
        value[one.name] = by_name[one.name].value
        bases.setdefault(PLAIN if one.name == PLAIN else one.basis, []).append(one)

    def plainest(some: Sequence[Candidate], best: float, slack: float, most: int) -> Candidate:
        tied = [one for one in some if best - value[one.name] <= (tie if one.name == PLAIN else slack)]
        return min(tied, key=lambda one: (min(one.complexity, most), -value[one.name]))

    winners = [plainest(some, max(value[one.name] for one in some), tie, WEIGHED) for some in bases.values()]
    return plainest(winners, max(value.values()), max(tie, apart), BUNDLE)
