"""Train a stop model on drafted tokens: standardisation, Lightning, best validation loss.

    loss = - Σ_i w_i [y_i log P̂_i + m (1 - y_i) log(1 - P̂_i)] / N         w of the label table, m the mismatch weight

SpecDec++ also replaces some drafted tokens by the target's own; tested tokens follow accepted ones only, which are the target's.
Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: N tokens, B of a batch.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from predictors.config import Positive, one_of
from predictors.stopping.features import BEFORE, INPUTS
from predictors.stopping.network import NetworkShape, StopNetwork
from predictors.training.stops.rows import LABELS, SOFT, SlotFeatures, TokenRows
from predictors.training.trainer import Rows, TrainConfig, Trained, Training, fitted, seeded, standardise

Tokens = tuple[SlotFeatures, TokenRows]


@dataclass(frozen=True)
class StopTrainConfig(TrainConfig):
    """How a stop model is trained: controller ``kind``, ``inputs`` of `predictors.stopping.features`, ``network``, ``labels``.
    ``mismatch_weight``: what the rejected share of a token counts in the loss against the accepted one."""

    kind: str = "early_stop"
    inputs: Annotated[str, one_of(*INPUTS)] = BEFORE
    network: NetworkShape = field(default_factory=NetworkShape)
    labels: Annotated[str, one_of(*LABELS)] = SOFT
    mismatch_weight: Positive = 1.0


def log_loss(mismatch_weight: float, network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Weighted binary cross-entropy of a batch of features, targets and weights."""
    features, targets_B, weights_B = batch
    logits_B = network(features)
    accepted_B, rejected_B = targets_B * logsigmoid(logits_B), (1 - targets_B) * logsigmoid(-logits_B)
    return -(weights_B * (accepted_B + mismatch_weight * rejected_B)).mean()


def fit_stop_model(
    train: Tokens, validation: Tokens, config: StopTrainConfig, logger: Logger | None = None
) -> Trained[StopNetwork]:
    """Train on tokens of ``train``, stop by those of ``validation``: the same for the same tokens, config and thread count."""
    rows, held_out = _rows(*train), _rows(*validation)
    with seeded(config):
        network = StopNetwork(rows.columns[0].shape[1], config.network)
        standardise(network.mean, network.scale, rows.columns[0])
        loss = partial(log_loss, config.mismatch_weight)
        return fitted(Training(network, config, loss), rows, held_out, logger)


def _rows(features: SlotFeatures, tokens: TokenRows) -> Rows:
    features_NF = features.at(tokens.row_N, tokens.slot_N)
    return Rows(features_NF, torch.from_numpy(tokens.target_N), torch.from_numpy(tokens.weight_N))
