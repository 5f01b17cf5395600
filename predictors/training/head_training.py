"""Train a head on roots of texts: reduction, balancing, Lightning, best validation loss.

Targets are ``drawn`` classes, or ``expected`` ones: their probabilities given the text (`predictors.training.head_roots`). The
fixed reduction is standardisation, then an optional PCA of the state columns:

    μ, σ: mean and standard deviation of each column (σ = 0 → 1)        C: leading principal axes of (x - μ) / σ
    s: standard deviation of the scores C (x - μ) / σ

Classes of the *training* rows are balanced. SMOTE (specification 4.3), in standardised space: for each class c with n_c < n_max,
generate n_max - n_c points

    x' = x + u (x_nn - x)        x uniform in c,  x_nn uniform among its k nearest rows of c,  u ~ U(0, 1),  k = min(5, n_c - 1)

The reduction is affine and applied before, so interpolating reduced rows is the same; only neighbours see the scale.

Trained is the MLP, on reduced rows, by cross-entropy with label smoothing. Validation rows have natural class shares, and a head
that was balanced expects other ones. So there log natural share - log training share is added to the logits, and plain
cross-entropy taken: the loss that is monitored is the one of the probabilities that are served.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from predictors.config import Count, Positive, Share, not_empty, of_length, one_of
from predictors.head import CLASSES, HRADNetwork, Reduction
from predictors.training.calibration import prior_shift
from predictors.training.head_roots import RootRows
from predictors.training.trainer import Batches, TrainConfig, Trained, Training, fitted, seeded, spread, standardise

BY_SMOTE, CLASS_WEIGHTS, NONE = METHODS = ("smote", "class_weights", "none")
NEIGHBOURS = 5
FAINT = 2.0**-10  # so small that probabilities which travel with standardised features choose no neighbours
DRAWN, EXPECTED = TARGETS = ("drawn", "expected")


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


@dataclass(frozen=True)
class HeadTrainConfig(TrainConfig):
    """Training of a head; the defaults are the paper's (specification 4.3). ``reduced_size`` null keeps all state columns;
    ``targets``: drawn classes, or their probabilities."""

    reduced_size: Count | None = None
    hidden_sizes: Annotated[tuple[Count, ...], of_length(2), not_empty] = (256, 64)
    dropout: Share = 0.4
    label_smoothing: Share = 0.1
    learning_rate: Positive = 5e-5
    epochs: Count = 20
    batch_size: Count = 32
    targets: Annotated[str, one_of(*TARGETS)] = DRAWN
    balance: Annotated[str, one_of(*METHODS)] = "smote"
    scheduler_factor: Positive = 0.5
    scheduler_patience: int = 2


@dataclass(frozen=True)
class TrainedHead(Trained[HRADNetwork]):
    """A trained head, with class shares before and after balancing."""

    natural_shares: tuple[float, ...]
    training_shares: tuple[float, ...]
    balance: str


def train(rows: RootRows, validation: RootRows, config: HeadTrainConfig, logger: Logger | None = None) -> TrainedHead:
    """Train on ``rows``, stop by ``validation``: the same for the same rows, config and thread count. Curves go to ``logger``."""
    labels, spec, classes = torch.from_numpy(rows.label_P), rows.roots.spec, rows.roots.target.classes
    expected = torch.from_numpy(rows.expected_PL).float() if config.targets == EXPECTED else None
    with seeded(config):
        first, second = config.hidden_sizes
        sizes = spec.state_size, len(spec.scalars), config.reduced_size
        network = HRADNetwork(*sizes, (first, second), config.dropout, len(classes))
        features = rows.features
        fit_reduction(network.reduction, features, config.seed)
        reduced, seen = network.reduced(features), network.reduced(validation.features)
        balanced = balance(config.balance, reduced, labels, config.seed, classes, expected)
        shares = natural_shares(labels, len(classes))
        shift, weights = prior_shift(shares, balanced.shares), balanced.class_weights

        def loss(head: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return F.cross_entropy(head(batch[0]), batch[1], weights, label_smoothing=config.label_smoothing)

        def judged(head: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
            logits, labels = head(batch[0]) + shift, batch[1]
            right = (logits.argmax(dim=1) == labels).float().mean()
            return {"val_accuracy": right, "val_loss": F.cross_entropy(logits, labels)}

        scheduler = partial(ReduceLROnPlateau, factor=config.scheduler_factor, patience=config.scheduler_patience)
        drawn = Batches(balanced.features, balanced.labels if balanced.expected is None else balanced.expected)
        held_out = Batches(seen, torch.from_numpy(validation.label_P))
        best = fitted(Training(network.head, config, loss, judged, scheduler), drawn, held_out, logger)
    return TrainedHead(network.eval(), best.history, best.best_epoch, shares, balanced.shares, balanced.method)


def fit_reduction(reduction: Reduction, features: Tensor, seed: int) -> None:
    """Fill ``reduction``'s buffers from real training rows [N, S + C] (never from synthetic or validation rows). `ValueError` if
    there are fewer rows or state columns than principal components."""
    standardise(reduction.mean, reduction.scale, features, least=0.0)
    count = len(reduction.components)
    if not count:
        return
    from sklearn.decomposition import PCA

    states = ((features - reduction.mean) / reduction.scale)[:, : reduction.state_size]
    if count > min(states.shape):
        raise ValueError(
            f"{count} principal components need at least as many training rows and state columns, got {states.shape[0]} "
            f"rows and {states.shape[1]} columns. Lower reduced_size or collect more prompts."
        )
    pca = PCA(n_components=count, random_state=seed).fit(states.numpy())
    reduction.components.copy_(torch.from_numpy(pca.components_))
    reduction.component_scale.copy_(spread(states @ reduction.components.T, least=0.0))
