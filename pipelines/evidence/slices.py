"""Gains by slice, partially pooled: a slice of few documents borrows from the others as far as slices are alike.

    y_h ~ N(θ_h, e_h²),   θ_h ~ N(μ, τ²),   μ flat,   τ half-normal of a stated scale

Given τ, θ_h is normal around a mean that shrinks y_h towards the weighted mean of all; τ is integrated out on a grid, as three
slices say little of it. Bounds are quantiles of the mixture. Sources: Gelman, Bayesian Data Analysis, 3rd ed., section 5.4;
Gelman, Prior distributions for variance parameters, Bayesian Analysis 1, 2006 (half-normal scale).

Shape suffixes: H slices, G grid of τ.
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
from pipelines.evidence.timed_blocks import TimedBlocks

GRID = 200


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
    estimates = {name: gain(blocks, arm, rival, replayed=replayed, only_slice=name) for name in judged}
    found = pooled(estimates, spread)
    return {name: found.get(name, SliceGain(None, None, None, count, False)) for name, count in counts.items()}


def _timed(blocks: TimedBlocks, arm: str, rival: str, name: str) -> int:
    """Documents of a slice on which both were timed, at the setting with the fewest."""
    both_B = blocks.both(arm, rival)
    settings = set(blocks.setting_B[both_B].tolist())
    kept = [both_B & (blocks.slice_B == name) & (blocks.setting_B == setting) for setting in settings]
    return min((len(set(blocks.document_B[kept_B].tolist())) for kept_B in kept), default=0)


def pooled(estimates: Mapping[str, Estimate], spread: float) -> dict[str, SliceGain]:
    """Pooled gains; one slice by itself borrows nothing."""
    if not estimates:
        return {}
    values_H = np.array([one.value for one in estimates.values()])
    errors_H = np.array([max(one.quantile(LEVEL) / norm.ppf(1 - LEVEL), 1e-9) for one in estimates.values()])
    weight_G, mean_GH, deviation_GH = _posterior(values_H, errors_H, spread)
    found = {}
    for place, (name, one) in enumerate(estimates.items()):
        mixture = weight_G, mean_GH[:, place], deviation_GH[:, place]
        low, high = (_quantile(level, *mixture) for level in (LEVEL, 1 - LEVEL))
        value = float((weight_G * mean_GH[:, place]).sum())
        found[name] = SliceGain(math.expm1(value), math.expm1(low), math.expm1(high), one.documents, True)
    return found


def _posterior(values_H: np.ndarray, errors_H: np.ndarray, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the grid of τ, and given each τ the means and deviations of every θ."""
    if len(values_H) == 1:
        return np.ones(1), values_H[None], errors_H[None]
    tau_G1 = np.linspace(0.0, 4 * spread, GRID)[:, None]
    precision_GH = 1 / (errors_H**2 + tau_G1**2)
    total_G = precision_GH.sum(axis=1)
    mu_G = (precision_GH * values_H).sum(axis=1) / total_G
    log_G = 0.5 * np.log(precision_GH).sum(axis=1) - 0.5 * np.log(total_G) - 0.5 * (tau_G1[:, 0] / spread) ** 2
    log_G -= 0.5 * (precision_GH * (values_H - mu_G[:, None]) ** 2).sum(axis=1)
    weight_G = np.exp(log_G - log_G.max())
    own_GH = tau_G1**2 * precision_GH  # how much of a slice's own estimate is kept
    mean_GH = own_GH * values_H + (1 - own_GH) * mu_G[:, None]
    variance_GH = own_GH * errors_H**2 + (1 - own_GH) ** 2 / total_G[:, None]
    return weight_G / weight_G.sum(), mean_GH, np.sqrt(variance_GH)


def _quantile(level: float, weight_G: np.ndarray, mean_G: np.ndarray, deviation_G: np.ndarray) -> float:
    edge = 10 * deviation_G.max()
    low, high = float(mean_G.min() - edge), float(mean_G.max() + edge)
    return float(brentq(lambda x: float((weight_G * ndtr((x - mean_G) / deviation_G)).sum()) - level, low, high))
