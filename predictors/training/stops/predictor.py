"""Family ``stop``: a model of whether a drafted token will be accepted, and the rule that stops drafting by it.

Trained on drafted tokens of training texts, calibrated and given rules on validation texts for the depth, verifier, sampling settings
and prices that it will serve, scored once on test texts.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from predictors.config import Count, Positive, Probability
from predictors.latency.actions import undisturbed
from predictors.latency.throughput import draft_cost
from predictors.network import squared_distance
from predictors.stopping.network import StopNetwork
from predictors.stopping.rule import StopCalibration, StopSetting
from predictors.training.labelling.table import read_labels
from predictors.training.labelling.tokens import KIND
from predictors.training.predictor import Fitted, Materials
from predictors.training.stops.calibration import calibrated, fit_calibration
from predictors.training.stops.drafts import Drafts
from predictors.training.stops.quality import quality
from predictors.training.stops.rows import SlotFeatures, TokenRows
from predictors.training.stops.rules import MCSD, PAPERS, Chosen, Played, choose, evaluate, starts_of
from predictors.training.stops.training import StopTrainConfig, TrainedStopModel, fit_stop_model
from predictors.training.text_table import TextTable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class StopPredictor(StopTrainConfig):
    """How a stop model is trained and served: in chains of at most ``gamma`` tokens that ``verifier`` verifies.

    Calibrated on products of up to ``calibrated_tokens`` chances; its rule is judged on ``folds`` of documents. The largest trusted
    squared distance is ``distance_margin`` times the ``distance_quantile`` on validation texts.
    """

    gamma: Count = 12
    verifier: str = "block"
    calibrated_tokens: Count = 3
    folds: Count = 5
    distance_quantile: Probability = 0.999
    distance_margin: Positive = 2.0

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        return _Fit(self, materials, logger).fitted()


class _Fit:
    """One fit, step by step."""

    def __init__(self, config: StopPredictor, materials: Materials, logger: "Logger | None") -> None:
        table = TextTable.read(materials.texts)
        labels = read_labels(materials.labels / f"{KIND}.parquet", KIND, table.manifest.content_hash)
        self.config, self.profile, self.manifest = config, materials.profile, table.manifest
        self.settings, self.context = table.settings, table.median_context
        split_N = table.column("split")
        self.features = {split: SlotFeatures(table.rows(split), config.inputs) for split in SPLITS}
        self.tokens = {
            split: TokenRows.of(self.features[split], labels, np.flatnonzero(split_N == split), config.labels)
            for split in SPLITS
        }
        self.model = self._trained(logger)
        self.said = {split: self.features[split].everywhere(self._said) for split in SPLITS[1:]}
        self.calibrations = self._calibrated()
        margin, distance_NG = config.distance_margin, self.said["validation"][1]
        self.max_distance = margin * float(np.nanquantile(distance_NG, config.distance_quantile))

    def fitted(self) -> Fitted:
        """Rules, and what all of it is worth."""
        chosen, parts = [], {}
        for number, made in enumerate(self.settings):
            train, _ = starts_of(self.features["train"].table, made, self.config, self.profile)
            validation, test = (self._played(split, number) for split in SPLITS[1:])
            chosen.append(choose(train, validation, made, self.config))
            paper = PAPERS.get(self.config.kind, MCSD)
            parts[made.name] = evaluate(test, chosen[-1], paper, self.profile)
        measured = self._known() | {"parts": parts}
        tensors = {key: tensor.contiguous() for key, tensor in self.model.network.state_dict().items()}
        gains = [one.choice.gain["value"] or 0.0 if one.choice.pays else 0.0 for one in chosen]
        rules = {"settings": [self._setting(number, one) for number, one in enumerate(chosen)]}
        rules |= {"validation_gain": float(np.mean(gains))}
        learned = {"history": self.model.history, "best_epoch": self.model.best_epoch}
        metrics = _metrics(measured) | {"validation_gain": rules["validation_gain"]}
        return Fitted(
            self._card(rules["settings"], measured), tensors, measured | rules | learned, metrics, sentence(measured)
        )

    def _trained(self, logger: "Logger | None") -> TrainedStopModel:
        train, validation = ((self.features[split], self.tokens[split]) for split in SPLITS[:2])
        return fit_stop_model(train, validation, self.config, logger)

    @torch.inference_mode()
    def _said(self, features_NF: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits, and squared distances from the training rows."""
        network: StopNetwork = self.model.network
        standard_NF = network.standard(features_NF)
        return network.logits(standard_NF), squared_distance(standard_NF)

    def _calibrated(self) -> list[StopCalibration]:
        features = self.features["validation"]
        drafts = Drafts.of(features, self.config.calibrated_tokens)
        setting_D = features.table.setting_N[drafts.start_D]
        logits_NG = self.said["validation"][0]
        return [fit_calibration(logits_NG, drafts.take(setting_D == number)) for number in range(len(self.settings))]

    def _chances(self, split: str) -> np.ndarray:
        return calibrated(self.said[split][0], self.calibrations, self.features[split].table.setting_N)

    def _played(self, split: str, number: int) -> Played:
        found = starts_of(self.features[split].table, self.settings[number], self.config, self.profile)
        size = self.manifest.stop_spec.size(self.config.inputs)
        question = undisturbed(self.profile).latency("stopping", features=size).seconds
        far_NG = self.said[split][1] > self.max_distance
        return Played.of(found, self._chances(split), far_NG, self.config.inputs, question)

    def _known(self) -> dict[str, Any]:
        """What the model knows of test texts."""
        features = self.features["test"]
        depth = min(self.config.gamma, self.manifest.gamma_max - features.sees)
        known = quality(self.tokens["test"], Drafts.of(features, depth), self._chances("test"))
        return known | {"documents": len(set(features.table.column("document")))}

    def _setting(self, number: int, chosen: Chosen) -> dict[str, Any]:
        made = StopSetting(chosen.settings, chosen.rule, chosen.static_length, chosen.tried, self.calibrations[number])
        return asdict(made)

    def _card(self, settings: list[dict[str, Any]], measured: dict[str, Any]) -> dict[str, Any]:
        """The bundle's card (`predictors.controllers.early_stop`): a function of file contents only."""
        config, manifest = self.config, self.manifest
        draft = draft_cost(undisturbed(self.profile), config.gamma, self.context, sampled=True)
        return {
            "kind": config.kind,
            "contract": manifest.contract,
            "stop_spec": asdict(manifest.stop_spec),
            "inputs": config.inputs,
            "network": asdict(config.network),
            "settings": settings,
            "max_distance": self.max_distance,
            "prices": {
                "draft_cost": draft,
                "gamma": config.gamma,
                "context": self.context,
                "profile_hash": self.profile.profile_hash,
            },
            "decoder": {
                "method": "speculative",
                "drafter": {"kind": "chain", "gamma": config.gamma},
                "verifier": config.verifier,
            },
            "measured_quality": {"split": "test", "tokens": measured["tokens"]["all"], "parts": measured["parts"]},
            "lineage": {"traces_sha256": manifest.content_hash},
        }


def sentence(measured: dict[str, Any]) -> str:
    """What the model knows and its rule is worth on held-out documents."""
    known = measured["tokens"]["all"]
    area = "unknown" if known["auroc"] is None else f"{known['auroc']:.3f}"
    parts = "; ".join(
        f"{name}: {_percent(part['policies']['model']['gain'])} replayed tokens/s over {part['static_length']} tokens always, "
        f"confidence {part['policies']['confidence']['gain']['value']:+.1%}, perfect "
        f"{part['policies']['perfect']['gain']['value']:+.1%}"
        for name, part in measured["parts"].items()
    )
    return f"AUROC {area}, ECE {known['ece']:.3f}; {parts}"


def _percent(gain: dict[str, float | None]) -> str:
    if gain["low"] is None:
        return f"{gain['value']:+.1%}"
    return f"{gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})"


def _metrics(measured: dict[str, Any]) -> dict[str, float | None]:
    """Flat metrics for tracking."""
    known = {f"test_{name}": measured["tokens"]["all"][name] for name in ("auroc", "brier", "ece")}
    gains = {
        f"test_gain_{place}_{name}".replace("=", ""): policy["gain"]["value"]
        for place, part in measured["parts"].items()
        for name, policy in part["policies"].items()
    }
    return known | gains
