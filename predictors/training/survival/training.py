"""Train the survival network on tested tokens of the rounds that static chains make of training texts.

    loss = - Σ w [log-likelihood of `now` where a token is tested + that of `next` where it is accepted] / Σ w

Rounds of several lengths begin at most positions of a text, after every kind of round. Shape suffixes: N tokens, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from predictors.config import Count, NotNegative, Positive
from predictors.survival.network import SurvivalNetwork
from predictors.training.survival.grid import SurvivalGrid
from predictors.training.trainer import Rows, TrainConfig, Trained, Training, fitted, seeded, standardise

LENGTHS = (2, 3, 4, 6, 8)  # of the static chains whose rounds are learned from


@dataclass(frozen=True)
class SurvivalTrainConfig(TrainConfig):
    """How the network of ``hidden`` units is trained."""

    hidden: Count = 16
    learning_rate: Positive = 5e-3
    weight_decay: NotNegative = 0.3
    epochs: Count = 40
    batch_size: Count = 4096
    stop_patience: Count = 4


def token_rows(grids: Sequence[SurvivalGrid]) -> Rows:
    """Features, whether `now` and `next` were accepted, and what either counts (0: not tested); all settings count alike."""
    parts = [_of_setting(grid) for grid in grids]
    total = np.mean([part[2].sum() for part in parts])
    parts = [(features, target, weight * total / weight.sum()) for features, target, weight in parts]
    return Rows(*(torch.from_numpy(np.concatenate(column)).float() for column in zip(*parts, strict=True)))


def _of_setting(grid: SurvivalGrid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    made = [_of_walk(grid, length) for length in LENGTHS]
    features_NF, target_N2, weight_N2 = (np.concatenate(column) for column in zip(*made, strict=True))
    return features_NF, target_N2, weight_N2


def _of_walk(grid: SurvivalGrid, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    walk, position_G = grid.static(length), np.arange(grid.starts.depth)
    would_V1, cap_V1 = (values[:, None] for values in grid.would(walk))
    tested_VG = (position_G <= would_V1) & (position_G < cap_V1)
    ahead_VG = (position_G < would_V1) & (position_G + 1 < cap_V1)
    features_VGF = grid.features(walk.reading_V, walk.start_V, walk.rejected_V, walk.luck_V)
    target_VG2 = np.stack([would_V1 > position_G, would_V1 > position_G + 1], axis=-1)
    weight_VG2 = np.stack([tested_VG, ahead_VG], axis=-1)
    return features_VGF[tested_VG], target_VG2[tested_VG].astype(float), weight_VG2[tested_VG].astype(float)


def log_loss(network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Weighted binary cross-entropy of a batch of `token_rows`."""
    features_NF, target_N2, weight_N2 = batch
    loss = binary_cross_entropy_with_logits(network(features_NF), target_N2, weight_N2, reduction="sum")
    return loss / weight_N2.sum()


def fit_survival(
    train: Sequence[SurvivalGrid],
    validation: Sequence[SurvivalGrid],
    config: SurvivalTrainConfig,
    logger: Logger | None,
) -> Trained[SurvivalNetwork]:
    """Train on one grid per sampling setting: the same for the same grids, config and thread count."""
    rows, held_out = token_rows(train), token_rows(validation)
    with seeded(config):
        network = SurvivalNetwork(config.hidden)
        standardise(network.mean, network.scale, rows.columns[0])
        return fitted(Training(network, config, log_loss), rows, held_out, logger)


def follows(train: SurvivalGrid) -> float:
    """How often a token is accepted after two that were."""
    would_V = np.concatenate([train.would(train.static(length))[0] for length in LENGTHS])
    tested_V = would_V >= 2
    return float((would_V[tested_V] >= 3).mean()) if tested_V.any() else 0.0
