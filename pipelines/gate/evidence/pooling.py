"""Effects that are alike as far as their estimates say: each borrows from the others, most from those of its own group.

    y_h ~ N(θ_h, e_h²),   θ_h ~ N(μ_g, τ²) in group g,   μ_g ~ N(μ, ω²),   μ flat,   τ half-normal of a stated scale

Given τ all is normal, and both levels follow one rule. Estimates y with squared errors e² of effects that lie s around a mean m:

    m flat:             V Σ_h w_h y_h,           w_h = 1 / (s² + e_h²),    variance V = 1 / Σ_h w_h
    evidence:           V^½ Π_h w_h^½ exp(-w_h (y_h - m)² / 2)
    effect, given m:    (1 - r) y + r m,         r = e² / (s² + e²),       variance r s² + r² (variance of m)

It makes μ_g flat of the estimates of group g, with s = τ, and its evidence; then μ and μ_g of these means and their variances,
with s = ω; then θ_h of y_h and μ_g. P(τ) ∝ exp(-τ² / 2 scale²) times the evidence of μ and of every group. The mean of a single
group is μ, whatever ω.

τ is integrated out on a grid, as a few effects say little of it. Sources: Gelman et al., Bayesian Data Analysis, 2013, section
5.4; Gelman, Prior distributions for variance parameters, Bayesian Analysis 1, 2006 (half-normal scale).

Shape suffixes: H effects, G groups, T values of τ.
"""

import math
from collections.abc import Sequence

import numpy as np

Normal = tuple[np.ndarray, np.ndarray]  # mean and variance, given each τ
UNKNOWN = (0.0, math.inf)  # what is known of an effect without an estimate


class FlatMean:
    """Mean of effects and its variance, given each τ; of no estimates it is 0. ``log_T``: the log of their evidence."""

    def __init__(self, value_TH: np.ndarray, variance_TH: np.ndarray, around_T: np.ndarray) -> None:
        self.mean_T, self.variance_T, self.log_T = np.zeros((3, len(around_T)))
        if value_TH.size:
            w_TH = 1 / (around_T[:, None] ** 2 + variance_TH)
            self.variance_T = 1 / w_TH.sum(axis=1)
            self.mean_T = self.variance_T * (w_TH * value_TH).sum(axis=1)
            far_TH = w_TH * (value_TH - self.mean_T[:, None]) ** 2
            self.log_T = (np.log(self.variance_T) + (np.log(w_TH) - far_TH).sum(axis=1)) / 2

    @property
    def normal(self) -> Normal:
        return self.mean_T, self.variance_T


class PooledEffects:
    """Of estimates and the squares of their errors: ``weight_T`` of every τ (``grid_T`` is τ over ``scale``), and given each the
    mean μ of ``all``. ``group_H`` names their groups, whose means lie ω = ``apart`` around μ; of no estimates all are 0."""

    def __init__(
        self,
        value_H: np.ndarray,
        variance_H: np.ndarray,
        scale: float,
        grid_T: np.ndarray,
        group_H: Sequence[str] | None = None,
        apart: float = 0.0,
    ) -> None:
        names_H = np.array(group_H or [""] * len(value_H))
        self.tau_T = scale * grid_T
        self.groups = {
            name: FlatMean(value_H[names_H == name], variance_H[names_H == name], self.tau_T)
            for name in sorted(set(names_H.tolist()))
        }
        alone = list(self.groups.values())
        self.apart_T = np.full_like(self.tau_T, apart if alone else 0.0)
        mean_TG, variance_TG = (np.array([one.normal[part] for one in alone]).T for part in (0, 1))
        self.all = FlatMean(mean_TG, variance_TG, self.apart_T)
        log_T = -(grid_T**2) / 2 + self.all.log_T + sum(one.log_T for one in alone)
        weight_T = np.exp(log_T - log_T.max())
        self.weight_T = weight_T / weight_T.sum()

    def group(self, name: str = "") -> Normal:
        """Mean of a group, with or without estimates."""
        own = self.groups[name].normal if name in self.groups else UNKNOWN
        return _effect(own, self.apart_T, self.all.normal)

    def effect(self, value: float, variance: float, group: str = "") -> Normal:
        """The effect with this estimate."""
        return _effect((value, variance), self.tau_T, self.group(group))


def _effect(own: tuple[float, float] | Normal, around_T: np.ndarray, mean: Normal) -> Normal:
    """An effect of its ``own`` estimate and the mean that it lies around."""
    rest_T = 1 / (1 + around_T**2 / own[1])
    return (1 - rest_T) * own[0] + rest_T * mean[0], rest_T * around_T**2 + rest_T**2 * mean[1]
