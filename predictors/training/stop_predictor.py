"""Family ``stop``: a model of whether a drafted token will be accepted, and the rule that stops drafting by it.

Trained on drafted tokens of training texts. Calibrated on them and on validation texts; given rules on validation texts, for the
depth, verifier, sampling settings and prices that it will serve. Scored once on test texts.

    chosen    argmax over thresholds, products, kept tokens and least lengths, on validation texts (`training.predictor`)
    served    where its gain out of fold is surely one; elsewhere the best static length is drafted, and no model run
    policies  static, confidence, the paper's rule, the model's, forced, asked for nothing, and the oracle's

All on the same texts with the same random numbers (`predictors.replay.grid`); one price table pays passes, readings and queries.
Shape suffixes: N rows of a table, X texts, S starts, G slots or positions of a chain.
"""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger

from predictors.config import Count
from predictors.latency.prices import RoundPrices
from predictors.replay.grid import Starts, Totals, decoded
from predictors.replay.policies import confidence, stopping
from predictors.schema import TEST, TRAIN, VALIDATION
from predictors.stopping import BEHIND, StopPrices, StopRule, StopSetting
from predictors.training.labelling import TOKENS
from predictors.training.predictor import (
    Fitted,
    Materials,
    RuleChoice,
    Trust,
    best_of,
    card_of,
    scored,
    static_length,
    static_totals,
    told,
    tracked_name,
)
from predictors.training.stop_model import StopModel, StopTrainConfig, WholeDrafts, quality

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LEAST = (0, 1, 2, 3, 4)
RULES = tuple(StopRule(*values) for values in product(THRESHOLDS, (False, True), (False, True), LEAST))
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
PAPERS = {"specdecpp": StopRule(0.7, product=True, keeps=True)}  # 1 - h
MCSD = StopRule(0.4, keeps=True)  # β


@dataclass(frozen=True)
class StopPolicies:
    """A stop model of ``inputs`` on texts at one sampling setting: its chances, where it would be bypassed as its features lie
    too ``far``, and seconds of a ``question``."""

    starts: Starts
    chances_XSG: np.ndarray
    far_XSG: np.ndarray
    inputs: str
    question: float

    def confidence(self, epsilon: float) -> Totals:
        return decoded(self.starts, confidence(self.starts, self.starts.column("confidence"), epsilon))

    def stopped(self, rule: StopRule, static_length: int, question: float | None = None) -> Totals:
        """Decode the texts by ``rule``; ``question``: seconds of a query of the model, if not as measured."""
        drafts = stopping(self.starts, self.chances_XSG, rule, self.inputs, static_length, self.far_XSG)
        return decoded(self.starts, drafts, self.question if question is None else question)


@dataclass(frozen=True)
class StopPredictor(StopTrainConfig, Trust):
    """Predictor of family ``stop``: a stop model for chains of at most ``gamma`` tokens that ``verifier`` verifies. Its rule is
    judged on ``folds`` of documents."""

    gamma: Count = 8
    verifier: str = "block"
    folds: Count = 5

    def fit(self, name: str, materials: Materials, logger: Logger | None = None) -> Fitted:
        table, profile = materials.text_table, materials.profile
        labels = materials.labels_of(TOKENS, table.manifest)
        model = StopModel(table, labels, self, logger)
        distances = model.distance[VALIDATION]
        limit = self.largest(distances[~np.isnan(distances)])
        made, choices, parts = [], [], {}
        for number, settings in enumerate(model.settings):
            prices = RoundPrices.at(profile, settings)
            train, _ = model.features[TRAIN].table.starts(settings, self.gamma, self.verifier, prices)
            validation, test = (self._played(model, split, number, prices, limit) for split in (VALIDATION, TEST))
            setting, choice, epsilon = self._chosen(model, number, train, validation)
            made.append(asdict(setting))
            choices.append(choice)
            parts[settings.name] = self._scored(test, setting, epsilon)
        features = model.features[TEST]
        known = quality(model.tokens[TEST], WholeDrafts.of(features, self.gamma), partial(model.chances, TEST))
        gains = [one.gain["value"] or 0.0 if one.pays else 0.0 for one in choices]
        measured = known | {
            "documents": len(set(features.table.column("document"))),
            "parts": parts,
            "settings": made,
            "validation_gain": float(np.mean(gains)),
            "choices": [asdict(one) for one in choices],
            "history": model.trained.history,
            "best_epoch": model.trained.best_epoch,
        }
        chain, context, manifest = ({"kind": "chain", "gamma": self.gamma}, table.median_context, table.manifest)
        decoder = {"method": "speculative", "drafter": chain, "verifier": self.verifier}
        draft = RoundPrices(profile, sampled=True).draft_cost(self.gamma, context)
        chosen_by = StopPrices(draft, self.gamma, context, profile.profile_hash)
        card = card_of(self.kind, manifest, decoder) | {
            "stop_spec": asdict(manifest.stop_spec),
            "inputs": self.inputs,
            "network": asdict(self.network),
            "prices": asdict(chosen_by),
            "settings": made,
            "max_distance": limit,
            "measured_quality": {"split": TEST, "tokens": known["tokens"]["all"], "parts": parts},
        }
        return Fitted(card, model.trained.network.state_dict(), measured, _metrics(measured), sentence(measured))

    def _played(self, model: StopModel, split: str, number: int, prices: RoundPrices, limit: float) -> StopPolicies:
        """Run the model at every slot of a split's texts; a token that it cannot judge has no chance."""
        table = model.features[split].table
        starts, texts = table.starts(model.settings[number], self.gamma, self.verifier, prices)
        size = table.manifest.stop_spec.size(self.inputs)
        question = prices.profile.latency("stopping", features=size).seconds
        said = np.nan_to_num(model.logits[split], nan=-np.inf), model.distance[split] > limit
        logits_XSG, far_XSG = (starts.by_start([values_NG[rows, : self.gamma] for rows in texts]) for values_NG in said)
        drafted_G = np.maximum(np.arange(logits_XSG.shape[2]) - (self.inputs == BEHIND), 0)
        chances_XSG = model.calibrations[number].after(drafted_G, logits_XSG)
        return StopPolicies(starts, chances_XSG, far_XSG, self.inputs, question)

    def _chosen(
        self, model: StopModel, number: int, train: Starts, validation: StopPolicies
    ) -> tuple[StopSetting, RuleChoice, float]:
        """Choose what is served at a setting; return how its rule was chosen, and the confidence rule's ε: the static length on
        training and validation texts, the rules on validation texts."""
        length, starts = static_length([train, validation.starts]), validation.starts
        play = partial(validation.stopped, static_length=length)
        choice = best_of(RULES, play, static_totals(starts, length), starts.document_X, self.folds, self.seed)
        epsilon = max(EPSILONS, key=lambda epsilon: validation.confidence(epsilon).rate)
        rule = choice.rule if choice.pays else StopRule(0.0)
        setting = StopSetting(model.settings[number], rule, length, choice.rule, model.calibrations[number])
        return setting, choice, epsilon

    def _scored(self, test: StopPolicies, made: StopSetting, epsilon: float) -> dict[str, Any]:
        """Score every policy's tokens per second on texts that chose nothing."""
        length = made.static_length
        policies = {
            "static": static_totals(test.starts, length),
            "confidence": test.confidence(epsilon),
            "paper": test.stopped(PAPERS.get(self.kind, MCSD), length),
            "model": test.stopped(made.rule, length),
            "asked": test.stopped(made.tried, length),
            "asked for nothing": test.stopped(made.tried, length, question=0.0),
        }
        return {"static_length": length, "epsilon": epsilon, "policies": scored(policies, test.starts)}


def sentence(measured: dict[str, Any]) -> str:
    """Summarise in a sentence how well the model predicts and what its rule gains on held-out documents."""
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
    known = {f"test_{name}": measured["tokens"]["all"][name] for name in ("auroc", "brier", "ece")}
    gains = {
        f"test_gain_{name}/{tracked_name(place)}": policy["gain"]["value"]
        for place, part in measured["parts"].items()
        for name, policy in part["policies"].items()
    }
    return known | gains | {"validation_gain": measured["validation_gain"]}
