"""Train a head on roots of texts: reduction, balancing, Lightning, best validation loss.

Targets are ``drawn`` classes, or ``expected`` ones: their probabilities given the text (`predictors.training.heads.target`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch

from predictors.config import Count, Positive, Share, not_empty, of_length, one_of
from predictors.network import HRADNetwork
from predictors.training.balance import METHODS, balance, natural_shares
from predictors.training.heads.module import HeadTraining
from predictors.training.heads.roots import Rows
from predictors.training.heads.target import Target
from predictors.training.reduction import fit_reduction
from predictors.training.temperature import prior_shift
from predictors.training.trainer import Rows as Batches
from predictors.training.trainer import TrainConfig, Trained, fitted, seeded

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

DRAWN, EXPECTED = TARGETS = ("drawn", "expected")


@dataclass(frozen=True)
class HeadTrainConfig(TrainConfig):
    """How a head is trained; the defaults are the paper's (specification 4.3). ``reduced_size`` null keeps all state columns;
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
    """With class shares before and after balancing."""

    natural_shares: tuple[float, ...]
    training_shares: tuple[float, ...]
    balance: str


def train(
    rows: Rows, validation: Rows, target: Target, config: HeadTrainConfig, logger: "Logger | None" = None
) -> TrainedHead:
    """Train on ``rows``, stop by ``validation``: the same for the same rows, config and thread count. Curves go to ``logger``."""
    labels, spec = torch.from_numpy(rows.labels(target)), rows.roots.spec
    expected = torch.from_numpy(rows.expected(target)).float() if config.targets == EXPECTED else None
    held_out = torch.from_numpy(validation.labels(target))
    with seeded(config):
        first, second = config.hidden_sizes
        sizes = spec.state_size, len(spec.scalars), config.reduced_size
        network = HRADNetwork(*sizes, (first, second), config.dropout, len(target.classes))
        features = rows.features
        fit_reduction(network.reduction, features, config.seed)
        reduced, seen = network.reduction(features), network.reduction(validation.features)
        balanced = balance(config.balance, reduced, labels, config.seed, target.classes, expected)
        shares = natural_shares(labels, len(target.classes))
        shift = prior_shift(shares, balanced.shares)
        module = HeadTraining(network.head, shift, balanced.class_weights, config)
        drawn = Batches(balanced.features, balanced.labels if balanced.expected is None else balanced.expected)
        best = fitted(module, drawn, Batches(seen, held_out), logger)
    return TrainedHead(network.eval(), best.history, best.best_epoch, shares, balanced.shares, balanced.method)
