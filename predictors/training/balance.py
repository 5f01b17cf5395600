"""Balance the classes of the *training* rows; validation and test keep their natural shares.

SMOTE (specification 4.3): in standardised space, for each class c with n_c < n_max, generate n_max - n_c points

    x' = x + u (x_nn - x)        x uniform in c,  x_nn uniform among its k nearest rows of c,  u ~ U(0, 1),  k = min(5, n_c - 1)

The head's reduction is fixed, affine and applied before this, so interpolating reduced rows equals interpolating in
standardised space and transforming back (interpolation commutes with affine maps); only neighbours see the scale.

After SMOTE the classes are equal: no weight is ever computed on the counts before it.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from predictors.network import CLASSES

NEIGHBOURS = 5
FAINT = 2.0**-10  # so small that probabilities which travel with standardised features choose no neighbours


@dataclass(frozen=True)
class Balanced:
    """Training rows [N, R] and labels [N] with what balances them.

    ``method`` is the one really used. ``expected`` holds the classes' probabilities [N, L], where they are known; points between
    two rows have those between theirs. ``class_weights`` are for the loss, ``shares`` the class shares that the head effectively
    trains on.
    """

    method: str
    features: Tensor
    labels: Tensor
    shares: tuple[float, ...]
    class_weights: Tensor | None = None
    expected: Tensor | None = None


def balance(
    method: str,
    features: Tensor,
    labels: Tensor,
    seed: int,
    classes: Sequence[str] = CLASSES,
    expected: Tensor | None = None,
) -> Balanced:
    """Balance training rows of ``classes`` (names; by default H-RAD's) by ``method``, a key of `METHODS`; ``expected``
    probabilities of the classes [N, L] stay with their rows.

    Raises
    ------
    ValueError
        For an unknown method, or a class without any row.
    """
    if method not in METHODS:
        raise ValueError(f"unknown balance {method!r}; known: {', '.join(METHODS)}.")
    counts = class_counts(labels, len(classes))
    if not counts.all():
        empty = ", ".join(repr(name) for name, count in zip(classes, counts.tolist(), strict=True) if not count)
        raise ValueError(
            f"class {empty} has no training row (rows by class: {counts.tolist()}): no head can learn it. "
            "Collect more prompts or change labels.chains.gamma."
        )
    if expected is None:
        return METHODS[method](features, labels, seed, classes)
    joined = METHODS[method](torch.cat([features, expected * FAINT], dim=1), labels, seed, classes)
    rows, chances = joined.features.split([features.shape[1], expected.shape[1]], dim=1)
    return replace(joined, features=rows.contiguous(), expected=chances / FAINT)


def class_counts(labels: Tensor, num_classes: int = len(CLASSES)) -> Tensor:
    """Rows per class [L]."""
    return torch.bincount(labels, minlength=num_classes)


def natural_shares(labels: Tensor, num_classes: int = len(CLASSES)) -> tuple[float, ...]:
    """Share of each class among ``labels``."""
    counts = class_counts(labels, num_classes).double()
    return tuple((counts / counts.sum()).tolist())


def _none(features: Tensor, labels: Tensor, seed: int, classes: Sequence[str]) -> Balanced:
    return Balanced("none", features, labels, natural_shares(labels, len(classes)))


def _class_weights(features: Tensor, labels: Tensor, seed: int, classes: Sequence[str]) -> Balanced:
    """Loss weights n / (L n_c) for L classes."""
    weights = len(labels) / (len(classes) * class_counts(labels, len(classes)).float())
    return Balanced("class_weights", features, labels, _uniform(classes), class_weights=weights)


def _uniform(classes: Sequence[str]) -> tuple[float, ...]:
    return (1 / len(classes),) * len(classes)


def _smote(features: Tensor, labels: Tensor, seed: int, classes: Sequence[str]) -> Balanced:
    counts = class_counts(labels, len(classes)).tolist()
    scarce = {name: count for name, count in zip(classes, counts, strict=True) if count <= NEIGHBOURS}
    if any(count < 2 for count in scarce.values()):
        warnings.warn(
            f"SMOTE needs two rows of each class to interpolate between, and the training rows are {_show(scarce)}: "
            "balancing by class weights instead. Collect more prompts.",
            stacklevel=4,
        )
        return _class_weights(features, labels, seed, classes)
    if scarce:
        warnings.warn(
            f"SMOTE has few training rows to interpolate between: {_show(scarce)}. "
            f"It uses {_show({name: count - 1 for name, count in scarce.items()}, 'neighbours')} instead of {NEIGHBOURS}. "
            "Collect more prompts for a better head.",
            stacklevel=4,
        )
    grown = [(features.numpy(), labels.numpy())]
    grown += [
        _synthetic(features, labels, c, max(counts), seed) for c, count in enumerate(counts) if count < max(counts)
    ]
    rows = torch.from_numpy(np.concatenate([part[0] for part in grown]))
    found = torch.from_numpy(np.concatenate([part[1] for part in grown]))
    return Balanced("smote", rows, found, natural_shares(found, len(classes)))


def _synthetic(features: Tensor, labels: Tensor, label: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The new points that bring one class to ``size`` rows."""
    from imblearn.over_sampling import SMOTE

    neighbours = min(NEIGHBOURS, int((labels == label).sum()) - 1)
    smote = SMOTE(sampling_strategy={label: size}, k_neighbors=neighbours, random_state=seed)
    rows, classes = smote.fit_resample(features.numpy(), labels.numpy())
    return rows[len(labels) :], classes[len(labels) :]


def _show(counts: dict[str, int], unit: str = "rows") -> str:
    return ", ".join(f"{count} {unit} of class {name!r}" for name, count in counts.items())


METHODS: dict[str, Callable[[Tensor, Tensor, int, Sequence[str]], Balanced]] = {
    "smote": _smote,
    "class_weights": _class_weights,
    "none": _none,
}
