"""Effects that are alike as far as their estimates say: each borrows from the others.

    y_h ~ N(θ_h, e_h²),   θ_h ~ N(μ, τ²),   μ flat,   τ half-normal of a stated scale

Given τ, θ_h is normal around a mean that shrinks y_h towards the weighted mean of all:

    μ:    V Σ_h w_h y_h,           w_h = 1 / (τ² + e_h²),    variance V = 1 / Σ_h w_h
    θ_h:  t_h y_h + (1 - t_h) μ,   t_h = τ² w_h,             variance t_h e_h² + (1 - t_h)² V
    P(τ) ∝ exp(-τ² / 2 scale²) V^½ Π_h w_h^½ exp(-w_h (y_h - μ)² / 2)

τ is integrated out on a grid, as a few effects say little of it. Sources: Gelman et al., Bayesian Data Analysis, 2013, section
5.4; Gelman, Prior distributions for variance parameters, Bayesian Analysis 1, 2006 (half-normal scale).

Shape suffixes: H effects, T values of τ.
"""

import numpy as np


class PooledEffects:
    """Of estimates and the squares of their errors: ``weight_T`` of every τ (``grid_T`` is τ over ``scale``), and given each the
    mean μ of all with its variance; of no estimates μ is 0."""

    def __init__(self, value_H: np.ndarray, variance_H: np.ndarray, scale: float, grid_T: np.ndarray) -> None:
        self.tau_T = scale * grid_T
        log_T, self.mean_T, self.mean_variance_T = -(grid_T**2) / 2, np.zeros_like(grid_T), np.zeros_like(grid_T)
        if len(value_H):
            w_TH = 1 / (self.tau_T[:, None] ** 2 + variance_H)
            self.mean_variance_T = 1 / w_TH.sum(axis=1)
            self.mean_T = self.mean_variance_T * (w_TH * value_H).sum(axis=1)
            far_TH = w_TH * (value_H - self.mean_T[:, None]) ** 2
            log_T = log_T + (np.log(self.mean_variance_T) + (np.log(w_TH) - far_TH).sum(axis=1)) / 2
        weight_T = np.exp(log_T - log_T.max())
        self.weight_T = weight_T / weight_T.sum()

    def effect(self, value: float, variance: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [T], given τ, of the effect with this estimate."""
        own_T = self.tau_T**2 / (self.tau_T**2 + variance)
        mean_T = own_T * value + (1 - own_T) * self.mean_T
        return mean_T, own_T * variance + (1 - own_T) ** 2 * self.mean_variance_T
