"""Balance the classes of the *training* rows; validation and test keep their natural shares.

SMOTE (specification 4.3): in standardised space, for each class c with n_c < n_max, generate n_max - n_c points

    x' = x + u (x_nn - x)        x uniform in c,  x_nn uniform among its k nearest rows of c,  u ~ U(0, 1),  k = min(5, n_c - 1)

The head's reduction is affine and applied before this, so interpolating reduced rows is the same; only neighbours see the scale.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictors.head import CLASSES

BY_SMOTE, CLASS_WEIGHTS, NONE = METHODS = ("smote", "class_weights", "none")
NEIGHBOURS = 5
FAINT = 2.0**-10  # so small that probabilities which travel with standardised features choose no neighbours


@dataclass(frozen=True)
class Balanced:
    """Balanced training rows [N, R] and labels [N].

    ``method`` is the one really used. ``expected`` holds the classes' probabilities [N, L], where they are known; points between
    two rows have those between theirs. ``class_weights`` are for the loss, n / (L n_c) of L classes; ``shares`` the class shares
    that the head effectively trains on.
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
    """Balance training rows of ``classes`` (names; by default H-RAD's) by ``method``, one of `METHODS`; ``expected``
    probabilities of the classes [N, L] stay with their rows. `ValueError` for a class without any row."""
    assert method in METHODS, method
    counts = torch.bincount(labels, minlength=len(classes))
    by_class = dict(zip(classes, counts.tolist(), strict=True))
    if not counts.all():
        empty = ", ".join(repr(name) for name, count in by_class.items() if not count)
        raise ValueError(
            f"class {empty} has no training row (rows by class: {counts.tolist()}): no head can learn it. "
            "Collect more prompts or change labels.chains.gamma."
        )
    if method == NONE:
        return Balanced(NONE, features, labels, natural_shares(labels, len(classes)), expected=expected)
    if method == CLASS_WEIGHTS or not _interpolable(by_class):
        weights, uniform = len(labels) / (len(classes) * counts.float()), (1 / len(classes),) * len(classes)
        return Balanced(CLASS_WEIGHTS, features, labels, uniform, weights, expected)
    size, joined = features.shape[1], features if expected is None else torch.cat([features, expected * FAINT], dim=1)
    rows, found = _smote(joined, labels, counts, seed)
    expected = None if expected is None else rows[:, size:] / FAINT
    return Balanced(
        BY_SMOTE, rows[:, :size].contiguous(), found, natural_shares(found, len(classes)), expected=expected
    )


def natural_shares(labels: Tensor, num_classes: int = len(CLASSES)) -> tuple[float, ...]:
    """Compute the share of each class among ``labels``."""
    counts = torch.bincount(labels, minlength=num_classes).double()
    return tuple((counts / counts.sum()).tolist())


def _interpolable(by_class: dict[str, int]) -> bool:
    """Tell whether there are two rows of each class to interpolate between; warn where they are few."""
    scarce = {name: count for name, count in by_class.items() if count <= NEIGHBOURS}
    enough = all(count >= 2 for count in scarce.values())
    if not enough:
        warnings.warn(
            f"SMOTE needs two rows of each class to interpolate between, and the training rows are {_show(scarce)}: "
            "balancing by class weights instead. Collect more prompts.",
            stacklevel=3,
        )
    elif scarce:
        warnings.warn(
            f"SMOTE has few training rows to interpolate between: {_show(scarce)}. "
            f"It uses {_show({name: count - 1 for name, count in scarce.items()}, 'neighbours')} instead of {NEIGHBOURS}. "
            "Collect more prompts for a better head.",
            stacklevel=3,
        )
    return enough


def _smote(features: Tensor, labels: Tensor, counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Add, class by class, the new points that bring it to as many rows as the largest; return all rows."""
    from imblearn.over_sampling import SMOTE

    most, grown = int(counts.max()), [(features.numpy(), labels.numpy())]
    for label, count in enumerate(counts.tolist()):
        if count < most:
            smote = SMOTE(sampling_strategy={label: most}, k_neighbors=min(NEIGHBOURS, count - 1), random_state=seed)
            made = smote.fit_resample(features.numpy(), labels.numpy())
            grown.append((made[0][len(labels) :], made[1][len(labels) :]))
    rows, found = (torch.from_numpy(np.concatenate(column)) for column in zip(*grown, strict=True))
    return rows, found


def _show(counts: dict[str, int], unit: str = "rows") -> str:
    return ", ".join(f"{count} {unit} of class {name!r}" for name, count in counts.items())
