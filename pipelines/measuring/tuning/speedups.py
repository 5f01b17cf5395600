"""Which candidate is fastest: the clock's speed-ups over plain decoding and those that replay predicts, each by its precision.

    clock       m_a = log of the ratio of sums over the blocks that candidate a and plain decoding share (`pipelines.evidence.gain`)
    replay      p_a = log of the predicted rates' ratio
    model       m_a = p_a + b + e_a + n_a,    e_a ~ (0, τ²),    n_a ~ (0, σ² / D_a)
    speed-up    θ_a = t_a m_a + (1 - t_a) (p_a + b),    t_a = τ² / (τ² + σ² / D_a);    θ_a = p_a + b without a clock

b is by how much replay is wrong in all candidates alike, as prices of another hour are; τ by how much in each; σ²/D_a is what D_a
documents leave of the clock's noise. σ² is pooled over candidates, as a handful of documents say little about one alone. With
w_a = D_a / σ² over the k candidates that were timed,

    τ² = (Q - (k - 1)) / (Σ w - Σ w² / Σ w),    Q = Σ w_a (m_a - p_a - b)²,    but at least a floor's square
    b  = Σ w*_a (m_a - p_a) / Σ w*_a,    w*_a = 1 / (τ² + σ² / D_a)

Source: Fay and Herriot, Estimates of income for small places, 1979; τ² by moments: DerSimonian and Laird, 1986.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.evidence.estimate import Estimate
from pipelines.evidence.gain import gain
from pipelines.evidence.timed_blocks import TimedBlocks
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.candidates import Candidate, plain

TINY = 1e-12  # a variance: clocks without any noise are no clocks


@dataclass(frozen=True)
class Speedup:
    """Over plain decoding, as logarithms: what was ``predicted``, what was ``measured`` on so many ``documents`` (``None``: on
    fewer than two), and both together, with a standard ``error``."""

    predicted: float
    measured: float | None
    documents: int
    value: float
    error: float


@dataclass(frozen=True)
class ReplayError:
    """How far replay was from the clock: ``bias`` b with its ``bias_variance``, ``variance`` τ²; ``noise`` is the clock's σ²."""

    bias: float
    bias_variance: float
    variance: float
    noise: float

    @staticmethod
    def of(predicted_A: np.ndarray, clock: Iterable[Estimate], floor: float) -> "ReplayError":
        """From candidates that have both; ``floor``: the least τ, as few candidates may agree by luck."""
        estimates = list(clock)
        if not estimates:
            return ReplayError(0.0, 0.0, floor**2, 0.0)
        documents_A, freedom_A = (
            np.array([getattr(one, name) for one in estimates]) for name in ("documents", "freedom")
        )
        variance_A = np.array([one.error for one in estimates]) ** 2
        noise = max(TINY, float((freedom_A * documents_A * variance_A).sum() / freedom_A.sum()))
        wrong_A = np.array([one.value for one in estimates]) - predicted_A
        w_A = documents_A / noise
        q = (w_A * (wrong_A - np.average(wrong_A, weights=w_A)) ** 2).sum()
        slack = w_A.sum() - (w_A**2).sum() / w_A.sum()
        variance = max(floor**2, float((q - len(w_A) + 1) / slack)) if len(w_A) > 1 else floor**2
        both_A = 1 / (variance + noise / documents_A)
        return ReplayError(float(np.average(wrong_A, weights=both_A)), float(1 / both_A.sum()), variance, noise)

    def combined(self, predicted: float, clock: Estimate | None) -> Speedup:
        """A candidate's speed-up by replay and, if it was timed, by the clock."""
        expected = predicted + self.bias
        if clock is None:
            return Speedup(predicted, None, 0, expected, math.sqrt(self.variance + self.bias_variance))
        noise = self.noise / clock.documents
        trust = self.variance / (self.variance + noise)
        error = math.sqrt(trust * noise + (1 - trust) ** 2 * self.bias_variance)
        value = trust * clock.value + (1 - trust) * expected
        return Speedup(predicted, clock.value, clock.documents, value, error)


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
    shared_B = np.all([blocks.both(arm, arm) for arm in arms], axis=0)
    return len(set(blocks.document_B[shared_B].tolist()))


def speedups(found: Iterable[Candidate], rows: Rows, floor: float) -> tuple[dict[str, Speedup], ReplayError]:
    """By candidate, from decodes at one sampling setting; plain decoding's own is 0."""
    some = list(found)
    base = plain(some).predicted
    predicted = {one.name: math.log(one.predicted / base) for one in some if one.name != PLAIN}
    clock = clocked([row for row in rows if row["arm"] == PLAIN or row["arm"] in predicted])
    replay = ReplayError.of(np.array([predicted[name] for name in clock]), clock.values(), floor)
    made = {name: replay.combined(value, clock.get(name)) for name, value in predicted.items()}
    return made | {PLAIN: Speedup(0.0, None, 0, 0.0, 0.0)}, replay


def fastest(found: Iterable[Candidate], by_name: Mapping[str, Speedup], tie: float = 0.0) -> Candidate:
    """The fastest of ``found``; of those that are slower by a share of ``tie`` at most, the plainest."""
    some = list(found)
    best = max(by_name[one.name].value for one in some)
    tied = [one for one in some if by_name[one.name].value >= best - math.log1p(tie)]
    return min(tied, key=lambda one: (one.complexity, -by_name[one.name].value))
