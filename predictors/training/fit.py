"""Train a head from a label table: reduction, balancing, Lightning, best validation loss."""

from dataclasses import dataclass

import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import WeightedRandomSampler as WeightedSampler

from predictors.features import FEATURE_SETS, FeatureSpec
from predictors.network import HRADNetwork
from predictors.training.balance import METHODS, Balanced, balance, natural_shares
from predictors.training.callbacks import BestEpoch
from predictors.training.head import HeadTraining
from predictors.training.label_table import LabelTable
from predictors.training.reduction import fit_reduction
from predictors.training.target import CLASS, TARGETS, Target
from predictors.training.trainer import Rows, in_batches, in_order, new_trainer, quiet, shuffled, threads


@dataclass(frozen=True)
class TrainConfig:
    """How a head is trained; the defaults are the paper's (specification 4.3). ``reduced_size`` null keeps all state columns;
    ``target`` is what it predicts (`predictors.training.target`)."""

    feature_set: str
    reduced_size: int | None = None
    hidden_sizes: tuple[int, ...] = (256, 64)
    dropout: float = 0.4
    label_smoothing: float = 0.1
    learning_rate: float = 5e-5
    weight_decay: float = 1e-4
    epochs: int = 20
    batch_size: int = 32
    balance: str = "smote"
    scheduler_factor: float = 0.5
    scheduler_patience: int = 2
    stop_patience: int = 5
    gradient_clip: float = 1.0
    seed: int = 0
    threads: int = 1
    target: str = CLASS

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"unknown target {self.target!r}; known: {', '.join(TARGETS)}.")
        if self.feature_set not in FEATURE_SETS:
            raise ValueError(f"unknown feature_set {self.feature_set!r}; known: {', '.join(FEATURE_SETS)}.")
        if self.balance not in METHODS:
            raise ValueError(f"unknown balance {self.balance!r}; known: {', '.join(METHODS)}.")
        if len(self.hidden_sizes) != 2:
            raise ValueError(f"hidden_sizes must be two numbers, got {list(self.hidden_sizes)}.")
        for name in ("epochs", "batch_size", "threads", "stop_patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}.")
        if self.reduced_size is not None and self.reduced_size < 1:
            raise ValueError(f"reduced_size must be >= 1 or null, got {self.reduced_size}.")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}.")


@dataclass(frozen=True)
class TrainedHead:
    """A network at its best validation loss, with what was learned on the way."""

    network: HRADNetwork
    spec: FeatureSpec
    history: list[dict[str, float]]
    best_epoch: int
    natural_shares: tuple[float, ...]
    training_shares: tuple[float, ...]
    balance: str


def fit(table: LabelTable, config: TrainConfig, logger: Logger | None = None) -> TrainedHead:
    """Train on the ``train`` rows, stop by the ``validation`` rows; ``test`` rows are never looked at.

    Parameters
    ----------
    logger
        A Lightning logger for the curves; the caller's choice, none by default.

    Returns
    -------
    TrainedHead
        The same for the same table, config and number of threads.
    """
    spec = table.metadata.feature_spec(config.feature_set)
    target = Target(config.target, spec.gamma)
    train, validation = table.rows("train"), table.rows("validation")
    labels = target.labels(train)
    with threads(config.threads), torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(config.seed)
        network = new_network(spec, config)
        fit_reduction(network.reduction, train.features(spec), config.seed)
        rows, reduced = (network.reduction(part.features(spec)) for part in (train, validation))
        balanced = balance(config.balance, rows, labels, config.seed, target.classes)
        shares = natural_shares(labels, len(target.classes))
        best = _run(network, balanced, shares, Rows(reduced, target.labels(validation)), config, logger)
    assert best.best is not None
    network.head.load_state_dict(best.best)
    return TrainedHead(
        network.eval(), spec, best.history, best.best_epoch, shares, balanced.shares, balance=balanced.method
    )


def new_network(spec: FeatureSpec, config: TrainConfig) -> HRADNetwork:
    """An untrained network of the configured size."""
    first, second = config.hidden_sizes
    num_classes = len(Target(config.target, spec.gamma).classes)
    return HRADNetwork(
        spec.state_size, len(spec.scalars), config.reduced_size, (first, second), config.dropout, num_classes
    )


def prior_shift(natural: tuple[float, ...], training: tuple[float, ...]) -> Tensor:
    """b = log natural share - log training share: what balancing must be given back."""
    return torch.log(torch.tensor(natural)) - torch.log(torch.tensor(training))


def _run(
    network: HRADNetwork,
    balanced: Balanced,
    shares: tuple[float, ...],
    validation: Rows,
    config: TrainConfig,
    logger: Logger | None,
) -> BestEpoch:
    module = HeadTraining(
        network.head,
        prior_shift(shares, balanced.shares),
        balanced.class_weights,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        label_smoothing=config.label_smoothing,
        scheduler_factor=config.scheduler_factor,
        scheduler_patience=config.scheduler_patience,
    )
    best = BestEpoch()
    trainer = new_trainer(best, config.epochs, config.gradient_clip, config.stop_patience, logger)
    trainer.fit(module, _train_loader(balanced, config), in_order(validation))
    return best


def _train_loader(balanced: Balanced, config: TrainConfig) -> DataLoader:
    rows = Rows(balanced.features, balanced.labels)
    if balanced.row_weights is None:
        return shuffled(rows, config.batch_size, config.seed)
    generator = torch.Generator().manual_seed(config.seed)
    sampler = WeightedSampler(balanced.row_weights.tolist(), len(rows), replacement=True, generator=generator)
    return in_batches(rows, sampler, config.batch_size)
