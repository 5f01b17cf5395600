"""Fit the head's fixed reduction on training rows: standardisation, then an optional PCA of the state columns.

μ, σ: mean and standard deviation of each column (σ = 0 → 1)        C: leading principal axes of (x - μ) / σ
s: standard deviation of the scores C (x - μ) / σ
"""

import torch
from torch import Tensor

from predictors.network import Reduction


def fit_reduction(reduction: Reduction, features: Tensor, seed: int) -> None:
    """Fill ``reduction``'s buffers from real training rows [N, S + C] (never from synthetic or validation rows).

    Raises
    ------
    ValueError
        If there are fewer rows or state columns than principal components.
    """
    exact = features.double()
    mean, scale = exact.mean(dim=0), exact.std(dim=0, correction=0)
    reduction.mean.copy_(mean)
    reduction.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))
    if len(reduction.components):
        standard = (features - reduction.mean) / reduction.scale
        _fit_components(reduction, standard[:, : reduction.state_size], seed)


def _fit_components(reduction: Reduction, states: Tensor, seed: int) -> None:
    from sklearn.decomposition import PCA

    count = len(reduction.components)
    if count > min(states.shape):
        raise ValueError(
            f"{count} principal components need at least as many training rows and state columns, got {states.shape[0]} "
            f"rows and {states.shape[1]} columns. Lower reduced_size or collect more prompts."
        )
    pca = PCA(n_components=count, random_state=seed).fit(states.numpy())
    reduction.components.copy_(torch.from_numpy(pca.components_))
    scale = (states @ reduction.components.T).double().std(dim=0, correction=0)
    reduction.component_scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))
