"""Family ``stop``: a model of whether a drafted token will be accepted, and the rule that stops drafting by it.

Trained on drafted tokens of training texts. Calibrated on them and on validation texts; given rules on validation texts, for the
depth, verifier, sampling settings and prices that it will serve. Scored once on test texts. Edits are left out of all.
"""

from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger

from predictors.config import Count
from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import draft_cost
from predictors.replay.decode import Reading
from predictors.replay.grid import Starts
from predictors.replay.prices import Prices
from predictors.sampling import SamplingSettings
from predictors.schema import TEST, TRAIN, VALIDATION
from predictors.stopping.features import BEHIND
from predictors.stopping.rule import StopSetting
from predictors.training.labelling.tokens import KIND
from predictors.training.predictor import Fitted, Materials, Trust, told, tracked_name
from predictors.training.stops.calibration import calibrated
from predictors.training.stops.drafts import Drafts
from predictors.training.stops.model import StopModel
from predictors.training.stops.quality import quality
from predictors.training.stops.rules import MCSD, PAPERS, Played, choose, evaluate
from predictors.training.stops.training import StopTrainConfig
from predictors.training.text_table import TextTable


@dataclass(frozen=True)
class StopPredictor(StopTrainConfig, Trust):
    """How a stop model is trained and served: in chains of at most ``gamma`` tokens that ``verifier`` verifies.

    Calibrated on products of up to ``calibrated_tokens`` chances; its rule is judged on ``folds`` of documents.
    """

    gamma: Count = 12
    verifier: str = "block"
    calibrated_tokens: Count = 6
    folds: Count = 5

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        table, profile = materials.text_table, materials.profile
        labels = materials.labels_of(KIND, table.manifest)
        model = StopModel(table, labels, self, self.calibrated_tokens, logger)
        distances = model.distance[VALIDATION]
        limit = self.largest(distances[~np.isnan(distances)])
        chosen, parts = [], {}
        for number, settings in enumerate(model.settings):
            train, _ = self._starts(model.features[TRAIN].table, settings, profile)
            validation, test = (self._played(model, split, number, profile, limit) for split in (VALIDATION, TEST))
            chosen.append(choose(train, validation, settings, self.folds, self.seed))
            parts[settings.name] = evaluate(test, chosen[-1], PAPERS.get(self.kind, MCSD), profile)
        made = [
            asdict(StopSetting(one.settings, one.rule, one.static_length, one.tried, calibration))
            for one, calibration in zip(chosen, model.calibrations, strict=True)
        ]
        gains = [one.choice.gain["value"] or 0.0 if one.choice.pays else 0.0 for one in chosen]
        measured = self._known(model) | {
            "parts": parts,
            "settings": made,
            "validation_gain": float(np.mean(gains)),
            "choices": [asdict(one.choice) for one in chosen],
            "history": model.trained.history,
            "best_epoch": model.trained.best_epoch,
        }
        card = self._card(table, profile, measured) | {"settings": made, "max_distance": limit}
        return Fitted(card, model.trained.network.state_dict(), measured, _metrics(measured), sentence(measured))

    def _starts(
        self, table: TextTable, settings: SamplingSettings, profile: LatencyProfile
    ) -> tuple[Starts, list[slice]]:
        """Every start of a table's texts at one sampling setting, and each text's rows of the table."""
        texts = zip(table.texts(), table.text_slices, strict=True)
        chosen = [(Reading.of(text, self.seed), rows) for text, rows in texts if text.settings == settings]
        prices = Prices(profile, not settings.greedy)
        starts = Starts.of([reading for reading, _ in chosen], self.gamma, self.verifier, prices)
        return starts, [rows for _, rows in chosen]

    def _played(self, model: StopModel, split: str, number: int, profile: LatencyProfile, limit: float) -> Played:
        """With what the model says at every slot of the table; a token that it cannot judge has no chance."""
        table = model.features[split].table
        question = undisturbed(profile).latency("stopping", features=table.manifest.stop_spec.size(self.inputs)).seconds
        starts, rows = self._starts(table, model.settings[number], profile)
        said = np.nan_to_num(model.logits[split], nan=-np.inf), model.distance[split] > limit
        logits_XSG, far_XSG = (starts.gather([values_NG[of] for of in rows]) for values_NG in said)
        drafted_G = np.maximum(np.arange(logits_XSG.shape[2]) - (self.inputs == BEHIND), 0)
        chances_XSG = calibrated(logits_XSG, drafted_G, *astuple(model.calibrations[number]))
        return Played(starts, chances_XSG, far_XSG, self.inputs, question)

    def _known(self, model: StopModel) -> dict[str, Any]:
        """What the model knows of test texts."""
        features = model.features[TEST]
        known = quality(model.tokens[TEST], Drafts.of(features, self.gamma), partial(model.chances, TEST))
        return known | {"documents": len(set(features.table.column("document")))}

    def _card(self, table: TextTable, profile: LatencyProfile, measured: dict[str, Any]) -> dict[str, Any]:
        """The bundle's card (`predictors.controllers.early_stop`) but for what was chosen: a function of file contents only."""
        manifest, context = table.manifest, table.median_context
        draft = draft_cost(undisturbed(profile), self.gamma, context, sampled=True)
        chain = {"kind": "chain", "gamma": self.gamma}
        return {
            "kind": self.kind,
            "contract": manifest.contract,
            "stop_spec": asdict(manifest.stop_spec),
            "inputs": self.inputs,
            "network": asdict(self.network),
            "prices": {
                "draft_cost": draft,
                "gamma": self.gamma,
                "context": context,
                "profile_hash": profile.profile_hash,
            },
            "decoder": {"method": "speculative", "drafter": chain, "verifier": self.verifier},
            "measured_quality": {"split": TEST, "tokens": measured["tokens"]["all"], "parts": measured["parts"]},
            "lineage": {"traces_sha256": manifest.content_hash},
        }


def sentence(measured: dict[str, Any]) -> str:
    """What the model knows and its rule is worth on held-out documents."""
    known = measured["tokens"]["all"]
    area = "unknown" if known["auroc"] is None else f"{known['auroc']:.3f}"
    parts = "; ".join(
        f"{name}: {told(part['policies']['model']['gain'])} replayed tokens/s over {part['static_length']} tokens always, "
        f"confidence {part['policies']['confidence']['gain']['value']:+.1%}, perfect "
        f"{part['policies']['perfect']['gain']['value']:+.1%}"
        for name, part in measured["parts"].items()
    )
    return f"AUROC {area}, ECE {known['ece']:.3f}; {parts}"


def _metrics(measured: dict[str, Any]) -> dict[str, float | None]:
    """Flat metrics for tracking."""
    known = {f"test_{name}": measured["tokens"]["all"][name] for name in ("auroc", "brier", "ece")}
    gains = {
        f"test_gain_{name}/{tracked_name(place)}": policy["gain"]["value"]
        for place, part in measured["parts"].items()
        for name, policy in part["policies"].items()
    }
    return known | gains | {"validation_gain": measured["validation_gain"]}
