"""A stop model: trained on drafted tokens, calibrated on drafts at every sampling setting, and what it knows of other texts.

    loss = - Σ_i w_i [y_i log P̂_i + m (1 - y_i) log(1 - P̂_i)] / N         w of the label table, m the mismatch weight

SpecDec++ also replaces some drafted tokens by the target's own; tested tokens follow accepted ones only, which are the target's.
Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: N tokens, B of a batch, D drafts, G slots or tokens of a
draft.
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

Parts = Sequence[tuple[np.ndarray, WholeDrafts]]  # logits [N, G] of a split's rows, and drafts from them
# of rows and slots, each behind so many tokens
Chances = Callable[[np.ndarray, np.ndarray, np.ndarray | int], np.ndarray]


@dataclass(frozen=True)
class StopTrainConfig(TrainConfig):
    """How a stop model is trained: controller ``kind``, ``inputs`` of `predictors.stopping`, ``network``, ``labels``.
    ``mismatch_weight``: what the rejected share of a token counts in the loss against the accepted one. The products of
    ``calibrated_tokens`` chances, of those recorded, are calibrated."""

    kind: str = "early_stop"
    inputs: Annotated[str, one_of(*INPUTS)] = BEFORE
    network: NetworkShape = field(default_factory=NetworkShape)
    labels: Annotated[str, one_of(*LABELS)] = SOFT
    mismatch_weight: Positive = 1.0
    calibrated_tokens: Count = 6


class StopModel:
    """Trained on training texts, stopped early by validation texts, and calibrated on both: networks this small say of the texts
    they learned from what they say of others, and the few validation documents by themselves are up to .03 off.

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
            own = {split: self._setting_N(split)[drafts.start_D] == number for split, drafts in every.items()}
            parts = [(self.logits[split], drafts.take(own[split])) for split, drafts in every.items()]
            # where all tokens of a setting have one fate, it is calibrated with the others
            self.calibrations.append(fit_calibration(parts if mixed(parts) else whole))

    def _rows(self, split: str) -> Batches:
        tokens = self.tokens[split]
        features_NF = self.features[split].at(tokens.row_N, tokens.slot_N)
        return Batches(features_NF, torch.from_numpy(tokens.target_N), torch.from_numpy(tokens.weight_N))

    def chances(self, split: str, row: np.ndarray, slot: np.ndarray, drafted: np.ndarray | int) -> np.ndarray:
        """Calibrated chances at rows and slots of a split's texts, each behind so many ``drafted`` tokens; shapes broadcast."""
        setting, logits = self._setting_N(split)[row], self.logits[split][row, slot]
        of_setting = [one.after(drafted, logits) for one in self.calibrations]
        return np.choose(setting, of_setting)

    @torch.inference_mode()
    def _said(self, features_NF: Tensor) -> tuple[Tensor, ...]:
        return self.trained.network.judged(features_NF)

    def _setting_N(self, split: str) -> np.ndarray:
        """Each row's sampling setting, as a place in ``settings``."""
        table = self.features[split].table
        places = np.array([self.settings.index(made) for made in table.settings])
        return np.asarray(places[table.setting_N])


def log_loss(mismatch_weight: float, network: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Weighted binary cross-entropy of a batch of features, targets and weights."""
    features, targets_B, weights_B = batch
    logits_B = network(features)
    accepted_B, rejected_B = targets_B * logsigmoid(logits_B), (1 - targets_B) * logsigmoid(-logits_B)
    return -(weights_B * (accepted_B + mismatch_weight * rejected_B)).mean()


def fit_calibration(parts: Parts) -> RisingCalibration:
    """Of least log loss over the drafts of all ``parts``. `ValueError` if all tokens have one fate."""
    if not mixed(parts):
        raise ValueError("every drafted token has one fate, so nothing can be calibrated. Collect more prompts.")
    columns = [
        (drafts.said(logits_NG, 0.0), drafts.survives_DG, drafts.weight_D[:, None] * drafts.known_DG)
        for logits_NG, drafts in parts
    ]
    return RisingCalibration(*product_calibration(*map(np.concatenate, zip(*columns, strict=True))))


def mixed(parts: Parts) -> bool:
    """Whether some of the tokens survive and others do not."""
    return len(np.unique(np.concatenate([drafts.survives_DG[drafts.known_DG] for _, drafts in parts]))) == 2


def quality(tokens: TokenRows, drafts: WholeDrafts, chances: Chances) -> dict[str, Any]:
    """Of ``chances`` on texts that were never seen: of tested ``tokens``, each once (as the first of a draft), and by position;
    and their ``product_bias`` along whole ``drafts``: mean Π P̂ (predicted) beside P(N >= n) (observed), empty for none. Tokens
    count by their probability given the text."""
    whole = drafts.take(np.asarray(drafts.whole_DG.all(axis=1)))
    drafted_G = np.arange(whole.row_DG.shape[1])
    chances_DG = np.where(whole.known_DG, chances(whole.row_DG, whole.slot_DG, drafted_G), 0.0)
    total = whole.weight_D.sum()
    means = (np.cumprod(chances_DG, axis=1), whole.survives_DG)
    predicted, observed = ((whole.weight_D @ values_DG / total).tolist() if total else [] for values_DG in means)
    known = {"all": binary(chances(tokens.row_N, tokens.slot_N, 0), tokens.accepted_N, tokens.weight_N)}
    for position in drafted_G.tolist():
        tested_D = (whole.accepted_D >= position) & whole.known_DG[:, position]
        if tested_D.any():
            columns = (chances_DG[:, position], whole.accepted_D > position, whole.weight_D)
            known[str(position)] = binary(*(column[tested_D] for column in columns))
    return {
        "tokens": known,
        "product_bias": {"predicted": predicted, "observed": observed},
        "rounds": len(np.unique(whole.start_D)),
    }
