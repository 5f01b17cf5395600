"""Train a stop model on tested tokens: standardisation, Lightning, best validation loss, then Platt scaling.

Labels are whether the token was accepted (``hard``), or its chance (``soft``): Σ min(p, q) for a model that does not see the
token, min(1, p(x)/q(x)) for one that does. SpecDec++ also replaces some drafted tokens by the target's own; tested tokens follow
accepted ones only, which are the target's. Source: specification of drafting, sections 5.5 and 7.5.

Shape suffixes: N tokens, B of a batch.
"""

from dataclasses import dataclass, field

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import logsigmoid

from predictors.stopping.features import BEFORE, BEHIND, INPUTS
from predictors.stopping.network import NetworkShape, StopNetwork
from predictors.stopping.rule import StopCalibration
from predictors.training.callbacks import BestEpoch
from predictors.training.token_table import TokenTable
from predictors.training.trainer import Rows, in_order, new_trainer, quiet, shuffled, threads

SOFT, HARD = LABELS = ("soft", "hard")
LEAST_SCALE = 1e-3


@dataclass(frozen=True)
class StopTrainConfig:
    """How a stop model is trained: controller ``kind``, ``inputs`` of `predictors.stopping.features`, ``network``, ``labels``.
    ``mismatch_weight``: what the rejected share of a token counts in the loss against the accepted one."""

    kind: str = "early_stop"
    inputs: str = BEFORE
    network: NetworkShape = field(default_factory=NetworkShape)
    labels: str = SOFT
    mismatch_weight: float = 1.0
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    epochs: int = 30
    batch_size: int = 256
    stop_patience: int = 5
    gradient_clip: float = 1.0
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.inputs not in INPUTS:
            raise ValueError(f"unknown inputs {self.inputs!r}; known: {', '.join(INPUTS)}.")
        if self.labels not in LABELS:
            raise ValueError(f"unknown labels {self.labels!r}; known: {', '.join(LABELS)}.")
        for name in ("mismatch_weight", "epochs", "batch_size", "stop_patience", "threads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")


@dataclass(frozen=True)
class TrainedStopModel:
    """A network at its best validation epoch, its calibration, and the curves."""

    network: StopNetwork
    calibration: StopCalibration
    history: list[dict[str, float]]
    best_epoch: int

    @torch.inference_mode()
    def chances(self, features_NF: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Calibrated chances [N] and squared distances [N] of raw features."""
        standard_NF = self.network.standard(features_NF)
        chances_N = self.calibration.probabilities(self.network.logits(standard_NF))
        return chances_N.double().numpy(), standard_NF.square().mean(dim=1).double().numpy()


class StopTraining(L.LightningModule):
    """Weighted binary cross-entropy of an injected network over standardised rows."""

    def __init__(self, network: StopNetwork, config: StopTrainConfig) -> None:
        super().__init__()
        self.head = network
        self.config = config

    def _loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, labels_B = batch
        logits_B, weight = self.head(features), self.config.mismatch_weight
        accepted_B, rejected_B = labels_B * logsigmoid(logits_B), (1 - labels_B) * logsigmoid(-logits_B)
        return -(accepted_B + weight * rejected_B).mean()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val_loss", self._loss(batch), on_step=False, on_epoch=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.AdamW(self.head.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)


def fit_stop_model(
    train: TokenTable, validation: TokenTable, config: StopTrainConfig, logger: Logger | None = None
) -> TrainedStopModel:
    """Train on the tested tokens of ``train``, stop and calibrate by those of ``validation``; the same for the same rows, config
    and number of threads."""
    rows, held_out = (_tested(part, config) for part in (train, validation))
    with threads(config.threads), torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(config.seed)
        network = StopNetwork(rows.columns[0].shape[1], config.network)
        _standardise(network, rows.columns[0])
        best = BestEpoch()
        trainer = new_trainer(best, config.epochs, config.gradient_clip, config.stop_patience, logger)
        trainer.fit(StopTraining(network, config), shuffled(rows, config.batch_size, config.seed), in_order(held_out))
        assert best.best is not None
        network.load_state_dict(best.best)
        network.eval()
    tested_N = validation.column("tested")
    with torch.inference_mode():
        logits_N = network(validation.features(config.inputs)[torch.from_numpy(tested_N)])
    calibration = fit_platt(logits_N.double().numpy(), validation.column("accepted")[tested_N])
    return TrainedStopModel(network, calibration, best.history, best.best_epoch)


def fit_platt(logits_N: np.ndarray, accepted_N: np.ndarray) -> StopCalibration:
    """Scale and bias of least log loss; a scale that would turn the order around is held at almost none."""
    if accepted_N.all() or not accepted_N.any():
        raise ValueError(
            "every tested token of the validation split has one fate, so nothing can be calibrated. Collect more prompts."
        )
    fitted = LogisticRegression(C=np.inf).fit(logits_N[:, None], accepted_N)
    scale, bias = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    return StopCalibration(max(scale, LEAST_SCALE), bias)


def _tested(table: TokenTable, config: StopTrainConfig) -> Rows:
    """Features and labels of tested tokens."""
    tested_N = torch.from_numpy(table.column("tested"))
    column = "accepted" if config.labels == HARD else ("acceptance" if config.inputs == BEHIND else "overlap")
    labels_N = torch.from_numpy(table.column(column).astype(np.float32))
    return Rows(table.features(config.inputs)[tested_N], labels_N[tested_N])


def _standardise(network: StopNetwork, features_NF: Tensor) -> None:
    exact = features_NF.double()
    scale = exact.std(dim=0, correction=0)
    network.mean.copy_(exact.mean(dim=0))
    network.scale.copy_(torch.where(scale > 1e-6, scale, torch.ones_like(scale)))
