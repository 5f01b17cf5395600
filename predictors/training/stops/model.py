"""Stop models: trained on drafted tokens, calibrated on drafts at every sampling setting, and measured on other texts.

    loss = - Σ_i [y_i log P̂_i + m (1 - y_i) log(1 - P̂_i)] / N         m the mismatch weight

SpecDec++ also replaces some drafted tokens by the target's own; tested tokens follow accepted ones only, which are the target's.
Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: N tokens, or
roots of drafts, B of a batch, G slots or tokens of a draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from predictors.config import Count, Positive, one_of
from predictors.schema import SPLITS, TRAIN, VALIDATION
from predictors.stopping import BEFORE, INPUTS, NetworkShape, RisingCalibration, StopNetwork
from predictors.training.calibration import product_calibration
from predictors.training.labelling import Labels
from predictors.training.metrics import binary
from predictors.training.stops.rows import LABELS, SOFT, SlotFeatures, TokenRows, WholeDrafts
from predictors.training.text_table import TextTable
from predictors.training.trainer import Batches, TrainConfig, trained

Parts = Sequence[tuple[np.ndarray, WholeDrafts]]  # logits [N, G] of rows, and drafts from them
# of rows and slots, each after so many tokens
Chances = Callable[[np.ndarray, np.ndarray, np.ndarray | int], np.ndarray]


@dataclass(frozen=True)
class StopTrainConfig(TrainConfig):
    """Training of a stop model: controller ``kind``, ``inputs`` of `predictors.stopping`, ``network``, ``labels``.
    ``mismatch_weight``: what the rejected share of a token counts in the loss against the accepted one. The products of
    ``calibrated_tokens`` chances, of those recorded, are calibrated."""

    kind: str = "early_stop"
    inputs: Annotated[str, one_of(*INPUTS)] = BEFORE
    network: NetworkShape = field(default_factory=NetworkShape)
    labels: Annotated[str, one_of(*LABELS)] = SOFT
    mismatch_weight: Positive = 1.0
    calibrated_tokens: Count = 6


class StopModel:
    """A stop model, trained on training texts, stopped early by validation texts, and calibrated on both: networks this small
    predict texts they learned from as they predict others, and the few validation documents by themselves are up to .03 off.

    ``labels`` (`predictors.training.labelling.tokens`) are of the trace of ``table``, texts of all splits.
    """

    def __init__(self, table: TextTable, labels: Labels, config: StopTrainConfig, logger: Logger | None = None) -> None:
        self.settings = table.settings
        self.features = {split: SlotFeatures(table.rows(split), config.inputs) for split in SPLITS}
        self.tokens = {split: TokenRows.of(made, labels, config.labels) for split, made in self.features.items()}
        make = partial(StopNetwork, table.manifest.stop_spec.size(config.inputs), config.network)
        loss = partial(log_loss, config.mismatch_weight)
        # the rows are large, and not kept
        self.trained = trained(make, config, loss, self._rows(TRAIN), self._rows(VALIDATION), logger)
        said = {split: features.everywhere(self._said) for split, features in self.features.items()}
        self.logits, self.distance = ({split: made[place] for split, made in said.items()} for place in (0, 1))
        every = {split: WholeDrafts.of(self.features[split], config.calibrated_tokens) for split in (TRAIN, VALIDATION)}
        whole = [(self.logits[split], drafts) for split, drafts in every.items()]
        self.calibrations = []
        for number in range(len(self.settings)):
            own = {split: self._setting_N(split) == number for split in every}
            parts = [(self.logits[split][own[split]], drafts.take(own[split])) for split, drafts in every.items()]
            # where all tokens of a setting have one fate, it is calibrated with the others
            self.calibrations.append(fit_calibration(parts if mixed(parts) else whole))

    def _rows(self, split: str) -> Batches:
        tokens = self.tokens[split]
        features_NF = self.features[split].at(tokens.row_N, tokens.slot_N)
        return Batches(features_NF, torch.from_numpy(tokens.target_N))

    def chances(self, split: str, row: np.ndarray, slot: np.ndarray, drafted: np.ndarray | int) -> np.ndarray:
        """Calibrate chances at rows and slots of a split's texts, each after so many ``drafted`` tokens; shapes broadcast."""
        setting, logits = self._setting_N(split)[row], self.logits[split][row, slot]
        of_setting = [one.after(drafted, logits) for one in self.calibrations]
        return np.choose(setting, of_setting)

    @torch.inference_mode()
    def _said(self, features_NF: Tensor) -> tuple[Tensor, ...]:
        return self.trained.network.judged(features_NF)

    def _setting_N(self, split: str) -> np.ndarray:
        """Index each row's sampling setting in ``settings``."""
        table = self.features[split].table
        places = np.array([self.settings.index(made) for made in table.settings])
        return np.asarray(places[table.setting_N])


def log_loss(mismatch_weight: float, network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Compute the weighted binary cross-entropy of a batch of features and targets."""
    features, targets_B = batch
    logits_B = network(features)
    accepted_B, rejected_B = targets_B * logsigmoid(logits_B), (1 - targets_B) * logsigmoid(-logits_B)
    return -(accepted_B + mismatch_weight * rejected_B).mean()


def fit_calibration(parts: Parts) -> RisingCalibration:
    """Fit the calibration of least log loss over the drafts of all ``parts``. `ValueError` if all tokens have one fate."""
    if not mixed(parts):
        raise ValueError("every drafted token has one fate, so nothing can be calibrated. Collect more prompts.")
    columns = [
        (np.where(drafts.known_NG, logits_NG[:, drafts.slot_G], 0.0), drafts.survives_NG, drafts.known_NG.astype(float))
        for logits_NG, drafts in parts
    ]
    return RisingCalibration(*product_calibration(*map(np.concatenate, zip(*columns, strict=True))))


def mixed(parts: Parts) -> bool:
    """Tell whether some of the tokens survive and others do not."""
    return len(np.unique(np.concatenate([drafts.survives_NG[drafts.known_NG] for _, drafts in parts]))) == 2


def quality(tokens: TokenRows, drafts: WholeDrafts, chances: Chances) -> dict[str, Any]:
    """Measure ``chances`` on texts that were never seen: of tested ``tokens``, and by position; and their ``product_bias`` along
    whole ``drafts``: mean Π P̂ (predicted) and P(N >= n) (observed), empty for none."""
    drafted_G, row_N1 = np.arange(len(drafts.slot_G)), np.arange(len(drafts.accepted_N))[:, None]
    chances_NG = np.where(drafts.known_NG, chances(row_N1, drafts.slot_G, drafted_G), 0.0)
    whole_N = np.asarray(drafts.whole_NG.all(axis=1))
    means = (np.cumprod(chances_NG[whole_N], axis=1), drafts.survives_NG[whole_N])
    predicted, observed = (values_NG.mean(axis=0).tolist() if whole_N.any() else [] for values_NG in means)
    known = {"all": binary(chances(tokens.row_N, tokens.slot_N, 0), tokens.accepted_N)}
    for position in drafted_G.tolist():
        tested_N = whole_N & (drafts.accepted_N >= position) & drafts.known_NG[:, position]
        if tested_N.any():
            known[str(position)] = binary(chances_NG[tested_N, position], drafts.accepted_N[tested_N] > position)
    return {
        "tokens": known,
        "product_bias": {"predicted": predicted, "observed": observed},
        "rounds": int(whole_N.sum()),
    }
