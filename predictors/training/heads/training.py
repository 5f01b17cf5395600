"""Train a head on roots of texts: reduction, balancing, Lightning, best validation loss.

Targets are ``drawn`` classes, or ``expected`` ones: their probabilities given the text (`predictors.training.heads.roots`). The
fixed reduction is standardisation, then an optional PCA of the state columns:

    μ, σ: mean and standard deviation of each column (σ = 0 → 1)        C: leading principal axes of (x - μ) / σ
    s: standard deviation of the scores C (x - μ) / σ

Trained is the MLP, on reduced rows, by cross-entropy with label smoothing. Validation rows have natural class shares, and a head
that was balanced expects other ones. So there log natural share - log training share is added to the logits, and plain
cross-entropy taken: the loss that is monitored is the one of the probabilities that are served.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from predictors.config import Count, Positive, Share, not_empty, of_length, one_of
from predictors.head import HRADNetwork, Reduction
from predictors.training.balance import METHODS, balance, natural_shares
from predictors.training.calibration import prior_shift
from predictors.training.heads.roots import Rows
from predictors.training.trainer import Batches, TrainConfig, Trained, Training, fitted, seeded, spread, standardise

DRAWN, EXPECTED = TARGETS = ("drawn", "expected")


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


def train(rows: Rows, validation: Rows, config: HeadTrainConfig, logger: Logger | None = None) -> TrainedHead:
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
