"""The survival network: trained on tested tokens of static chains along training texts, calibrated, and what it knows of others.

    loss             - Σ w [log-likelihood of `now` where a token is tested + that of `next` where it is accepted] / Σ w
    calibration      loss = - Σ_rounds Σ_g log P(the chain survives token g or not | Π_{i<=g} P̂_i)     one scale, one bias
    tokens           AUROC, Brier score and calibration error of `now` on tested tokens
    product_bias     mean Π P̂ along drafts (predicted) beside the share of chains that survived (observed)

Rounds of several lengths begin at most positions of a text, after every kind of round. Products are calibrated under the verifier
that serves: what a model misses is alike along a draft. Shape suffixes: N tokens, V rounds, G positions of a chain, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from predictors.config import Count, NotNegative, Positive
from predictors.stopping.rule import StopCalibration
from predictors.survival.network import NOW, SurvivalArrays, SurvivalNetwork
from predictors.training.calibration import product_calibration
from predictors.training.metrics import binary
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


def token_rows(grids: Sequence[SurvivalGrid]) -> Rows:
    """Features, whether `now` and `next` were accepted, and what either counts (0: not tested); all settings count alike."""
    parts = [[_of_length(grid, length) for length in LENGTHS] for grid in grids]
    columns = [tuple(map(np.concatenate, zip(*of_grid, strict=True))) for of_grid in parts]
    total = np.mean([weight_N2.sum() for *_, weight_N2 in columns])
    columns = [(features, target, weight * total / weight.sum()) for features, target, weight in columns]
    return Rows(*(torch.from_numpy(np.concatenate(column)).float() for column in zip(*columns, strict=True)))


def _of_length(grid: SurvivalGrid, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    (places, would_V1, cap_V1), position_G = grid.static(length), np.arange(grid.starts.depth)
    tested_VG = (position_G <= would_V1) & (position_G < cap_V1)
    ahead_VG = (position_G < would_V1) & (position_G + 1 < cap_V1)
    target_VG2 = np.stack([would_V1 > position_G, would_V1 > position_G + 1], axis=-1)
    weight_VG2 = np.stack([tested_VG, ahead_VG], axis=-1)
    made = (grid.features(*places), target_VG2.astype(float), weight_VG2.astype(float))
    features_NF, target_N2, weight_N2 = (column[tested_VG] for column in made)
    return features_NF, target_N2, weight_N2


def log_loss(network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Weighted binary cross-entropy of a batch of `token_rows`."""
    features_NF, target_N2, weight_N2 = batch
    loss = binary_cross_entropy_with_logits(network(features_NF), target_N2, weight_N2, reduction="sum")
    return loss / weight_N2.sum()


def follows(train: SurvivalGrid) -> float:
    """How often a token is accepted after two that were."""
    would_V = np.concatenate([train.static(length)[1][:, 0] for length in LENGTHS])
    tested_V = would_V >= 2
    return float((would_V[tested_V] >= 3).mean()) if tested_V.any() else 0.0


def chances(logits: np.ndarray, calibration: StopCalibration) -> np.ndarray:
    """Calibrated probabilities of logits of any shape."""
    return np.asarray(1 / (1 + np.exp(-(calibration.scale * logits + calibration.bias))))


def calibrated(grids: Sequence[SurvivalGrid], served: SurvivalArrays, length: int) -> StopCalibration:
    """On the rounds of a static chain of ``length`` tokens."""
    columns = zip(*(said(grid, served, length) for grid in grids), strict=True)
    logits_VG, survives_VG, known_VG = map(np.concatenate, columns)
    scale, bias, _ = product_calibration(logits_VG, survives_VG, known_VG.astype(float), rises=False)
    return StopCalibration(scale, bias)


def said(grid: SurvivalGrid, served: SurvivalArrays, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Along rounds of a static chain of ``length`` tokens [V, G]: logits of `now`, whether the chain survives each token, and
    whether it was drafted."""
    (places, would_V1, cap_V1), position_G = grid.static(length), np.arange(length)
    logits_VG2, _ = served(grid.features(*places)[:, :length])
    return logits_VG2[..., NOW], np.asarray(would_V1 > position_G), np.asarray(position_G < cap_V1)


def quality(grid: SurvivalGrid, served: SurvivalArrays, calibration: StopCalibration, length: int) -> dict[str, Any]:
    """Along the rounds of a static chain of ``length`` tokens."""
    logits_VG, survives_VG, known_VG = said(grid, served, length)
    chances_VG = chances(logits_VG, calibration)
    tested_VG = known_VG & np.insert(survives_VG, 0, True, axis=1)[:, :-1]
    whole_V = known_VG.all(axis=1)
    accepted_N, chances_N = survives_VG[tested_VG], chances_VG[tested_VG]
    return {
        "tokens": binary(chances_N, accepted_N, np.ones(len(accepted_N))),
        "product_bias": {
            "predicted": np.cumprod(chances_VG[whole_V], axis=1).mean(axis=0).tolist(),
            "observed": survives_VG[whole_V].mean(axis=0).tolist(),
        },
        "rounds": int(whole_V.sum()),
    }
