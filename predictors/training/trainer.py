"""What every training run shares: Lightning's trainer, batches from memory, a fixed thread count, a quiet screen."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from predictors.training.callbacks import BestEpoch, EpochBar


class Rows(Dataset):
    """Columns of rows in memory, indexed by a whole batch at once (a DataLoader per row costs more than a head)."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, rows: list[int]) -> tuple[Tensor, ...]:
        return tuple(column[rows] for column in self.columns)


def new_trainer(best: BestEpoch, epochs: int, gradient_clip: float, patience: int, logger: Logger | None) -> L.Trainer:
    """A trainer that stops after ``patience`` epochs without a lower ``val_loss``, remembered by ``best``."""
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        gradient_clip_val=gradient_clip,
        logger=logger or False,
        callbacks=[EarlyStopping("val_loss", patience=patience), best, EpochBar()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1_000_000_000,  # curves per epoch: a tracking call per step costs more than the step
    )


def shuffled(rows: Rows, batch_size: int, seed: int) -> DataLoader:
    """Batches in a new order every epoch."""
    return in_batches(rows, RandomSampler(rows, generator=torch.Generator().manual_seed(seed)), batch_size)


def in_order(rows: Rows, batch_size: int = 4096) -> DataLoader:
    """Batches in the rows' order."""
    return in_batches(rows, SequentialSampler(rows), batch_size)


def in_batches(rows: Rows, sampler: Sampler, batch_size: int) -> DataLoader:
    """Batches of the sampler's rows."""
    return DataLoader(rows, sampler=BatchSampler(sampler, batch_size, drop_last=False), batch_size=None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """``count`` of torch's threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning's tips and advice for data loaders off the screen."""
    names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
    loggers = [logging.getLogger(name) for name in names]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def standardise(mean: Tensor, scale: Tensor, rows: Tensor) -> None:
    """Fill in every column's mean and standard deviation over ``rows``, 1 where it does not vary."""
    exact = rows.double()
    deviation = exact.std(dim=0, correction=0)
    mean.copy_(exact.mean(dim=0))
    scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))
