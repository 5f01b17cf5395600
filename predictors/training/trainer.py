"""Base of every training run: how fast and how long, Lightning's module and trainer, batches from memory, one seed."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler
from tqdm import tqdm

from predictors.config import Checked, Count, NotNegative, Positive
from predictors.network import Standardised


@dataclass(frozen=True)
class TrainConfig(Checked):
    """Speed and length of a network's training, which kinds of networks add to."""

    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 1e-4
    epochs: Count = 30
    batch_size: Count = 256
    stop_patience: Count = 5
    gradient_clip: Positive = 1.0
    seed: int = 0
    threads: Count = 1


Network = TypeVar("Network", bound=nn.Module)
Standard = TypeVar("Standard", bound=Standardised)
Loss = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]  # of a network and a batch, whose first column are features
Judged = Callable[[nn.Module, tuple[Tensor, ...]], dict[str, Tensor]]


class Training(L.LightningModule, Generic[Network]):
    """Training of an injected network by a ``loss``; the network knows nothing of Lightning. ``judged``: figures of validation
    rows by name, of which ``val_loss`` decides (by default the same loss), also about the learning rate with a ``scheduler``."""

    def __init__(
        self,
        network: Network,
        config: TrainConfig,
        loss: Loss,
        judged: Judged | None = None,
        scheduler: Callable[[Optimizer], ReduceLROnPlateau] | None = None,
    ) -> None:
        super().__init__()
        self.head, self.config, self.loss, self.scheduler = network, config, loss, scheduler
        self.judged = judged or (lambda head, batch: {"val_loss": loss(head, batch)})

    def training_step(self, batch: tuple[Tensor, ...], index: int) -> Tensor:
        loss = self.loss(self.head, batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, ...], index: int) -> None:
        for name, value in self.judged(self.head, batch).items():
            self.log(name, value, on_step=False, on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        rate, decay = self.config.learning_rate, self.config.weight_decay
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=rate, weight_decay=decay)
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.scheduler(optimizer), "monitor": "val_loss"}}


class OneProcess(L.Trainer):
    """Trains in this process alone, on the CPU, whatever the environment sets for clusters, ranks and ``PL_TRAINER_*``: Lightning
    reads the latter by the name of the class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(accelerator="cpu", devices=1, plugins=[LightningEnvironment()], **options)

    def fit(self, *arguments: Any, **options: Any) -> None:
        rank, rank_zero_only.rank = rank_zero_only.rank, 0  # another rank's logger would log nothing
        try:
            super().fit(*arguments, **options)
        finally:
            rank_zero_only.rank = rank


class BestEpoch(L.Callback):
    """Keeps the curve of every epoch and the head's weights at the lowest validation loss; shows the epochs in one progress bar,
    which is silent where the output is no terminal."""

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Any] | None = None
        self.best_epoch = -1
        self.best_loss = float("inf")

    def on_fit_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar = tqdm(total=trainer.max_epochs, desc="training", unit="epoch", disable=None)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        # Runs after the epoch's validation, when both losses are known.
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.history.append({"epoch": trainer.current_epoch, **dict(sorted(metrics.items())), "learning_rate": rate})
        if metrics["val_loss"] < self.best_loss:
            self.best_loss, self.best_epoch = metrics["val_loss"], trainer.current_epoch
            self.best = copy.deepcopy(module.head.state_dict())
        self.bar.set_postfix(val_loss=f"{metrics['val_loss']:.4f}")
        self.bar.update()

    def on_fit_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.bar.close()


@dataclass(frozen=True)
class Trained(Generic[Network]):
    """A trained network at its best validation epoch, and the curves."""

    network: Network
    history: list[dict[str, float]]
    best_epoch: int


class Batches(Dataset):
    """Data set of columns of rows in memory, indexed by a whole batch at once (a DataLoader per row costs more than a head)."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, ...]:
        index = torch.tensor(rows)
        return tuple(column[index] for column in self.columns)


def trained(
    make: Callable[[], Standard],
    config: TrainConfig,
    loss: Loss,
    rows: Batches,
    held_out: Batches,
    logger: Logger | None,
) -> Trained[Standard]:
    """Train a network of ``make``, which standardises its features, by `fitted`: the same for the same rows, config, threads."""
    with seeded(config):
        network = make()
        standardise(network.mean, network.scale, rows.columns[0])
        return fitted(Training(network, config, loss), rows, held_out, logger)


def fitted(
    module: Training[Network], rows: Batches, held_out: Batches, logger: Logger | None = None
) -> Trained[Network]:
    """Train ``module`` on ``rows`` until ``val_loss`` on ``held_out`` falls no more."""
    config, best = module.config, BestEpoch()
    trainer = OneProcess(
        max_epochs=config.epochs,
        gradient_clip_val=config.gradient_clip,
        logger=logger or False,
        callbacks=[EarlyStopping("val_loss", patience=config.stop_patience), best],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1_000_000_000,  # curves per epoch: a tracking call per step costs more than the step
    )
    drawn = RandomSampler(rows, generator=torch.Generator().manual_seed(config.seed))
    trainer.fit(module, _batches(rows, drawn, config.batch_size), _batches(held_out, SequentialSampler(held_out), 4096))
    assert best.best is not None
    module.head.load_state_dict(best.best)
    return Trained(module.head.eval(), best.history, best.best_epoch)


def _batches(rows: Batches, sampler: Sampler, size: int) -> DataLoader:
    return DataLoader(rows, sampler=BatchSampler(sampler, size, drop_last=False), batch_size=None)


@contextmanager
def seeded(config: TrainConfig) -> Iterator[None]:
    """Draw the same numbers in every run inside the block, on ``config.threads``, without Lightning's tips and advice for data
    loaders on the screen."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    before, levels = torch.get_num_threads(), [log.level for log in loggers]
    try:
        torch.set_num_threads(config.threads)
        for log in loggers:
            log.setLevel(logging.ERROR)
        # a caller's autocast would round what is learned
        with torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            torch.manual_seed(config.seed)
            yield
    finally:
        torch.set_num_threads(before)
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def standardise(mean: Tensor, scale: Tensor, rows: Tensor, least: float = 1e-6) -> None:
    """Fill in every column's mean over ``rows``, and its `spread`."""
    mean.copy_(rows.double().mean(dim=0))
    scale.copy_(spread(rows, least))


def spread(rows: Tensor, least: float) -> Tensor:
    """Compute every column's standard deviation, 1 where that is not above ``least``."""
    deviation = rows.double().std(dim=0, correction=0)
    return torch.where(deviation > least, deviation, torch.ones_like(deviation))
