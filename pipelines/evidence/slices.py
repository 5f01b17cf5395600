"""Gains by slice, partially pooled: a slice of few documents borrows from the others as far as slices are alike.

Effects of `pipelines.evidence.pooling` are the gains' logarithms. Bounds are quantiles of the mixture over τ.

Shape suffix: T values of τ.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import norm

from pipelines.evidence.estimate import LEVEL, Estimate
from pipelines.evidence.gain import gain
from pipelines.evidence.ledger import Replayed
from pipelines.evidence.pooling import PooledEffects
from pipelines.evidence.timed_blocks import TimedBlocks

GRID_T = np.linspace(0.0, 4.0, 200)  # τ over its scale


@dataclass(frozen=True)
class SliceGain:
    """A slice's pooled gain with one-sided 95 % bounds; without bounds it is not judged."""

    value: float | None
    low: float | None
    high: float | None
    documents: int
    judged: bool


def slice_gains(
    blocks: TimedBlocks, arm: str, rival: str, least: int, spread: float, replayed: Replayed | None = None
) -> dict[str, SliceGain]:
    """By slice. One with fewer than ``least`` timed documents is not judged; ``spread`` is the scale of τ."""
    counts = {name: _timed(blocks, arm, rival, name) for name in sorted(set(blocks.slice_B.tolist()))}
    judged = [name for name, count in counts.items() if count >= max(2, least)]
    estimates = {name: gain(blocks, arm, rival, {name: 1.0}, replayed) for name in judged}
    found = pooled(estimates, spread)
    return {name: found.get(name, SliceGain(None, None, None, count, False)) for name, count in counts.items()}


def _timed(blocks: TimedBlocks, arm: str, rival: str, name: str) -> int:
    """Documents of a slice on which both were timed, at the setting with the fewest."""
    both_B = blocks.shared(arm, rival)
    settings = set(blocks.setting_B[both_B].tolist())
    kept = [both_B & (blocks.slice_B == name) & (blocks.setting_B == setting) for setting in settings]
    return min((len(set(blocks.document_B[kept_B].tolist())) for kept_B in kept), default=0)


def pooled(estimates: Mapping[str, Estimate], spread: float) -> dict[str, SliceGain]:
    """Pooled gains; one slice by itself borrows nothing."""
    values = np.array([one.value for one in estimates.values()])
    squares = np.array([max(one.quantile(LEVEL) / norm.ppf(1 - LEVEL), 1e-9) ** 2 for one in estimates.values()])
    effects = PooledEffects(values, squares, spread, GRID_T)
    found = {}
    for (name, one), square in zip(estimates.items(), squares.tolist(), strict=True):
        mean_T, variance_T = effects.effect(one.value, square)
        low, high = (_quantile(level, effects.weight_T, mean_T, np.sqrt(variance_T)) for level in (LEVEL, 1 - LEVEL))
        value = float(effects.weight_T @ mean_T)
        found[name] = SliceGain(math.expm1(value), math.expm1(low), math.expm1(high), one.documents, True)
    return found


def _quantile(level: float, weight_T: np.ndarray, mean_T: np.ndarray, deviation_T: np.ndarray) -> float:
    edge = 10 * deviation_T.max()
    low, high = float(mean_T.min() - edge), float(mean_T.max() + edge)
    return float(brentq(lambda x: float((weight_T * ndtr((x - mean_T) / deviation_T)).sum()) - level, low, high))
