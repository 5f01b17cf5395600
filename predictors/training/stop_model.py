"""Stop models: trained on drafted tokens, calibrated on drafts at every sampling setting, and measured on other texts.

    law, before   features are read at the token's own pass: at its slot
    behind        after the token: at the next slot
    hard label    whether the token was accepted
    soft label    Σ min(p, q) for a model that does not see the token, min(1, p/q) for one that does

    loss = - Σ_i [y_i log P̂_i + m (1 - y_i) log(1 - P̂_i)] / N         m the mismatch weight

SpecDec++ also replaces some drafted tokens by the target's own; tested tokens follow accepted ones only, which are the target's.
Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: N rows of the table or labelled tokens, B of a batch, G
slots or tokens of a draft, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from predictors.config import Count, Positive, one_of
from predictors.schema import SPLITS, TRAIN, VALIDATION
from predictors.stopping import BEFORE, BEHIND, INPUTS, LAW, NetworkShape, RisingCalibration, StopNetwork
from predictors.training.calibration import along_drafts, binary, product_calibration
from predictors.training.labelling import Labels
from predictors.training.tables import STATES, TOPS, TextTable
from predictors.training.trainer import Batches, TrainConfig, trained

SOFT, HARD = LABELS = ("soft", "hard")
ROWS_AT_ONCE = 2000
# of rows and slots, each after so many tokens
Chances = Callable[[np.ndarray, np.ndarray, np.ndarray | int], np.ndarray]


@dataclass(frozen=True)
class SlotFeatures:
    """Raw features of ``inputs`` (`predictors.stopping`) at the slots of ``table``."""

    table: TextTable
    inputs: str

    @property
    def sees(self) -> bool:
        """True if a model of these inputs sees the token that it judges."""
        return self.inputs == BEHIND

    def at(self, row_N: np.ndarray, slot_N: np.ndarray) -> Tensor:
        """Read features [N, F] in float32 of the pass at each row and slot."""
        read_NF = self._stored_NGF[row_N, slot_N].astype(np.float32)
        if self.inputs == LAW:
            read_NF = np.append(read_NF, self.table.column("entropy")[row_N, slot_N][:, None], axis=1)
        return torch.from_numpy(read_NF)

    def everywhere(self, said: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[np.ndarray, ...]:
        """Compute numbers by ``said`` from features [N, F] at all slots, each [N, G]; NaN where nothing was recorded."""
        found: list[np.ndarray] = []
        for first in range(0, len(self.known_NG), ROWS_AT_ONCE):
            row_N, slot_N = np.nonzero(self.known_NG[first : first + ROWS_AT_ONCE])
            numbers = said(self.at(row_N + first, slot_N))
            found = found or [np.full(self.known_NG.shape, np.nan) for _ in numbers]
            for made_NG, number_N in zip(found, numbers, strict=True):
                made_NG[row_N + first, slot_N] = number_N.double().numpy()
        return tuple(found)

    @cached_property
    def known_NG(self) -> np.ndarray:
        """Slots [N, G] at which something was recorded."""
        return ~np.isnan(self.table.column("entropy"))

    @cached_property
    def _stored_NGF(self) -> np.ndarray:
        stored_NGF = self.table.slots(TOPS if self.inputs == LAW else STATES)
        if stored_NGF.shape[1] < self.table.manifest.gamma_max:
            raise ValueError(
                f"a model of {self.inputs} reads states of whole drafts, and none were recorded. Set traces.texts.rollout_states."
            )
        return stored_NGF


@dataclass(frozen=True)
class TokenRows:
    """Drafted tokens: the row and slot where a model reads what judges them, whether each was accepted, and its target."""

    row_N: np.ndarray
    slot_N: np.ndarray
    accepted_N: np.ndarray
    target_N: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, labels: Labels, kind: str) -> "TokenRows":
        """Collect the tokens of ``labels`` (`predictors.training.labelling`, tokens) of the features' texts that a model of these
        inputs judges."""
        index_N = features.table.index
        table = labels.table.filter(np.isin(labels.table.column("row"), index_N))
        row_N, slot_N, accepted_N, acceptance_N, overlap_N = (
            np.asarray(table.column(name)) for name in ("row", "slot", "accepted", "acceptance", "overlap")
        )
        row_N, read_N = np.searchsorted(index_N, row_N), slot_N.astype(int) + features.sees
        known_N = read_N < features.known_NG.shape[1]
        known_N[known_N] = features.known_NG[row_N[known_N], read_N[known_N]]
        target_N = accepted_N if kind == HARD else acceptance_N if features.sees else overlap_N
        columns = (row_N, read_N, accepted_N, target_N.astype(np.float32))
        return TokenRows(*(column[known_N] for column in columns))


@dataclass(frozen=True)
class WholeDrafts:
    """Chains from every row [N], of which ``accepted_N`` tokens are accepted: the slots ``slot_G`` where a model reads what
    judges each token; whether text and budget hold so many (``whole_NG``) and all of it was recorded (``known_NG``)."""

    accepted_N: np.ndarray
    slot_G: np.ndarray
    whole_NG: np.ndarray
    known_NG: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, depth: int) -> "WholeDrafts":
        """Collect drafts of ``depth`` tokens, or as many as were recorded, at slots where a model of these inputs is run."""
        table = features.table
        position_G = np.arange(min(depth, table.manifest.gamma_max - features.sees))
        left_N = np.minimum(
            table.end_N - np.arange(len(table)) + 1, table.manifest.max_new_tokens - 1 - table.column("place")
        )
        whole_NG, slot_G = position_G < left_N[:, None], position_G + features.sees
        known_NG = np.logical_and.accumulate(features.known_NG[:, slot_G] & whole_NG, axis=1)
        return WholeDrafts(table.column("accepted"), slot_G, whole_NG, known_NG)

    def take(self, mask_N: np.ndarray) -> "WholeDrafts":
        return WholeDrafts(self.accepted_N[mask_N], self.slot_G, self.whole_NG[mask_N], self.known_NG[mask_N])

    @property
    def survives_NG(self) -> np.ndarray:
        """True [N, G] where a token is accepted, with all before it."""
        return np.arange(len(self.slot_G)) < self.accepted_N[:, None]


Parts = Sequence[tuple[np.ndarray, WholeDrafts]]  # logits [N, G] of rows, and drafts from them


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

    ``labels`` (`predictors.training.labelling`, tokens) are of the trace of ``table``, texts of all splits.
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
    """Measure ``chances`` on texts that were never seen: of tested ``tokens``, and by position; and `along_drafts` that are
    whole."""
    drafted_G, row_N1 = np.arange(len(drafts.slot_G)), np.arange(len(drafts.accepted_N))[:, None]
    chances_NG = np.where(drafts.known_NG, chances(row_N1, drafts.slot_G, drafted_G), 0.0)
    whole_N = np.asarray(drafts.whole_NG.all(axis=1))
    known = {"all": binary(chances(tokens.row_N, tokens.slot_N, 0), tokens.accepted_N)}
    for position in drafted_G.tolist():
        tested_N = whole_N & (drafts.accepted_N >= position) & drafts.known_NG[:, position]
        if tested_N.any():
            known[str(position)] = binary(chances_NG[tested_N, position], drafts.accepted_N[tested_N] > position)
    return {"tokens": known, **along_drafts(chances_NG, drafts.survives_NG, whole_N)}
