"""A trained and calibrated stop model, and what it says of recorded texts."""

import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor

from predictors.network import squared_distance
from predictors.schema import SPLITS, TRAIN, VALIDATION
from predictors.training.labelling.table import Labels
from predictors.training.stops.calibration import calibrated, fit_calibration, mixed
from predictors.training.stops.drafts import Drafts
from predictors.training.stops.rows import SlotFeatures, TokenRows
from predictors.training.stops.training import StopTrainConfig, fit_stop_model
from predictors.training.text_table import TextTable

CALIBRATED = ("scale", "bias", "rise")


class StopModel:
    """Trained on training texts, stopped early by validation texts, and calibrated on both: networks this small say of the texts
    they learned from what they say of others, and the few validation documents by themselves are up to .03 off.

    ``labels`` (`predictors.training.labelling.tokens`) are of the trace of ``table``, texts of all splits; ``calibrated_tokens``:
    the products of how many chances, of those recorded, are calibrated.
    """

    def __init__(
        self,
        table: TextTable,
        labels: Labels,
        config: StopTrainConfig,
        calibrated_tokens: int,
        logger: Logger | None = None,
    ) -> None:
        self.settings = table.settings
        self.features = {split: SlotFeatures(table.rows(split), config.inputs) for split in SPLITS}
        self.tokens = {split: TokenRows.of(made, labels, config.labels) for split, made in self.features.items()}
        train, validation = ((self.features[split], self.tokens[split]) for split in (TRAIN, VALIDATION))
        self.trained = fit_stop_model(train, validation, config, logger)
        said = {split: self.features[split].everywhere(self._said) for split in SPLITS}
        self.distance = {split: distance_NG for split, (_, distance_NG) in said.items()}
        self.logits = {split: logits_NG for split, (logits_NG, _) in said.items()}
        every = {split: Drafts.of(self.features[split], calibrated_tokens) for split in (TRAIN, VALIDATION)}
        self.calibrations = []
        for number in range(len(self.settings)):
            own = {split: made.take(self._setting_N(split)[made.start_D] == number) for split, made in every.items()}
            parts = [(self.logits[split], made) for split, made in own.items()]
            # where all tokens of a setting have one fate, it is calibrated with the others
            whole = [(self.logits[split], made) for split, made in every.items()]
            self.calibrations.append(fit_calibration(parts if mixed(parts) else whole))

    def chances(self, split: str, row: np.ndarray, slot: np.ndarray, drafted: np.ndarray | int) -> np.ndarray:
        """Calibrated chances at rows and slots of a split's texts, each behind so many ``drafted`` tokens; shapes broadcast."""
        setting = self._setting_N(split)[row]
        fitted = (np.array([getattr(one, name) for one in self.calibrations])[setting] for name in CALIBRATED)
        return calibrated(self.logits[split][row, slot], drafted, *fitted)

    @torch.inference_mode()
    def _said(self, features_NF: Tensor) -> tuple[Tensor, ...]:
        """Logits, and squared distances from the training rows."""
        standard_NF = self.trained.network.standard(features_NF)
        return self.trained.network.logits(standard_NF), squared_distance(standard_NF)

    def _setting_N(self, split: str) -> np.ndarray:
        """Each row's sampling setting, as a place in ``settings``."""
        table = self.features[split].table
        places = np.array([self.settings.index(made) for made in table.settings])
        return np.asarray(places[table.setting_N])
