"""Choose a stop model's rule on validation rounds, and measure model and rule on documents that it never saw.

Measured on tested tokens: AUROC, Brier score, calibration error, overall and by place in the draft; on all drafts: by how much
the product of chances along the draft misses the share of drafts that survive so far, which is what thresholds consume. Measured
on rounds: tokens per second beside the best static length, the confidence rule, the paper's rule and a perfect one. A rule is
chosen on half of the validation documents and exported only where its gain on the other half is surely one; elsewhere the best
static length is. Intervals by bootstrap over documents.

Shape suffixes: R rounds, G places (γ_max), N tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from predictors.stopping.rule import StopRule, StopSetting
from predictors.training.bootstrap import DocumentBootstrap, interval
from predictors.training.metrics import auc
from predictors.training.rule_calibration import RuleCalibration
from predictors.training.stop_fit import StopTrainConfig, TrainedStopModel
from predictors.training.stop_replay import Outcome, StopCosts, StopReplay
from predictors.training.token_table import Rounds, TokenTable

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LEAST = (0, 1, 2, 3, 4)
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
PAPERS = {"specdecpp": StopRule(0.7, product=True, keeps=True)}  # 1 - h
MCSD = StopRule(0.4, keeps=True)  # β
BINS = 15


@dataclass(frozen=True)
class Chosen:
    """What is exported: settings with their rules, the largest trusted distance; ``epsilons`` of the confidence rule by setting,
    and the ``validation_gain`` over the static length where rules were not chosen."""

    settings: tuple[StopSetting, ...]
    max_distance: float
    epsilons: tuple[float, ...]
    validation_gain: float


class StopStudy:
    """One model on one split."""

    def __init__(self, table: TokenTable, model: TrainedStopModel, config: StopTrainConfig, costs: StopCosts) -> None:
        self.table, self.inputs, self.paper = table, config.inputs, PAPERS.get(config.kind, MCSD)
        self.chances_N, self.distance_N = model.chances(table.features(config.inputs))
        rounds = table.rounds
        self.whole = rounds.take(rounds.drafted_R == table.manifest.gamma_max)
        self.chances_RG = self.whole.spread(self.chances_N, 1.0)
        self.largest_RG = self.whole.spread(table.features("law")[:, 0].double().numpy(), 1.0)
        self.replay = StopReplay(self.whole, costs)

    def at(
        self, setting: int, half: int | None = None, question: float | None = None
    ) -> tuple[StopReplay, np.ndarray, np.ndarray]:
        """Replay, chances and largest probabilities of the rounds at one sampling setting, of all documents or of every other;
        ``question``: seconds of one, if not as measured."""
        mask_R = self.whole.setting_R == setting
        if half is not None:
            mask_R &= np.unique(self.whole.document_R, return_inverse=True)[1] % 2 == half
        costs = self.replay.costs if question is None else replace(self.replay.costs, question=question)
        return StopReplay(self.whole.take(mask_R), costs), self.chances_RG[mask_R], self.largest_RG[mask_R]


def choose(train: StopStudy, validation: StopStudy, config: RuleCalibration) -> Chosen:
    """The static length on training rounds; rule, whether it is asked, and ε on validation rounds."""
    settings, epsilons, gains = [], [], []
    for number, made in enumerate(validation.table.settings):
        known, (replay, chances_RG, _) = train.at(number)[0], validation.at(number, half=0)
        others, their_chances_RG, _ = validation.at(number, half=1)
        lengths = range(known.costs.rounds_SM.shape[1])
        static = max(lengths, key=lambda length: known.static(length).throughput)
        rules = [
            StopRule(threshold, whole, keeps, least)
            for threshold, whole, keeps, least in product(THRESHOLDS, (False, True), (False, True), LEAST)
        ]
        outcomes = [replay.stopped(chances_RG, rule, validation.inputs) for rule in rules]
        best = max(range(len(rules)), key=lambda place: outcomes[place].throughput)
        unseen = others.stopped(their_chances_RG, rules[best], validation.inputs)
        gain = _gain(unseen, others.static(static), others.rounds, config)
        sure = gain["low"] is not None and gain["low"] > 0
        settings.append(StopSetting(made, rules[best] if sure else StopRule(0.0), static, rules[best]))
        gains.append(gain["value"] if sure else 0.0)
        every, _, largest_RG = validation.at(number)
        speeds = {epsilon: every.confidence(largest_RG, epsilon).throughput for epsilon in EPSILONS}
        epsilons.append(max(speeds, key=speeds.__getitem__))
    limit = config.distance_margin * float(np.quantile(validation.distance_N, config.distance_quantile))
    return Chosen(tuple(settings), limit, tuple(epsilons), float(np.mean(gains)))


def evaluate(test: StopStudy, chosen: Chosen, config: RuleCalibration) -> dict[str, Any]:
    """Quality of the chances, and every policy's tokens per second by sampling setting."""
    settings = test.table.settings
    return {
        "tokens": _quality(test),
        "product_bias": _product_bias(test),
        "parts": {made.name: _part(test, number, chosen, config) for number, made in enumerate(settings)},
        "documents": len(set(test.whole.document_R.tolist())),
        "rounds": len(test.whole.accepted_R),
    }


def _part(test: StopStudy, number: int, chosen: Chosen, config: RuleCalibration) -> dict[str, Any]:
    replay, chances_RG, largest_RG = test.at(number)
    setting = chosen.settings[number]
    static = replay.static(setting.static_length)
    policies = {
        "static": static,
        "confidence": replay.confidence(largest_RG, chosen.epsilons[number]),
        "paper": replay.stopped(chances_RG, test.paper, test.inputs),
        "model": replay.stopped(chances_RG, setting.rule, test.inputs) if setting.rule.asks else static,
        "asked": replay.stopped(chances_RG, setting.tried, test.inputs),
        "asked for nothing": test.at(number, question=0.0)[0].stopped(chances_RG, setting.tried, test.inputs),
        "perfect": replay.perfect(),
    }
    return {
        "static_length": setting.static_length,
        "epsilon": chosen.epsilons[number],
        "policies": {
            name: {
                "tokens_per_second": outcome.throughput,
                "block_efficiency": float(outcome.tokens.mean()),
                "submitted": float(outcome.submitted.mean()),
                "gain": _gain(outcome, static, replay.rounds, config),
            }
            for name, outcome in policies.items()
        },
    }


def _gain(outcome: Outcome, static: Outcome, rounds: Rounds, config: RuleCalibration) -> Mapping[str, Any]:
    bootstrap = DocumentBootstrap(rounds.document_R, config.bootstrap_replicates, config.seed)
    speed, before = (bootstrap.ratio(one.tokens, one.seconds) for one in (outcome, static))
    return interval(outcome.throughput / static.throughput - 1, speed / before - 1)


def _quality(test: StopStudy) -> dict[str, Any]:
    tested_N, accepted_N = test.table.column("tested"), test.table.column("accepted")
    place_N = test.table.column("place")
    parts = {"all": tested_N} | {
        str(place): tested_N & (place_N == place) for place in range(test.table.manifest.gamma_max)
    }
    return {name: _binary(test.chances_N[mask], accepted_N[mask]) for name, mask in parts.items() if mask.any()}


def _binary(chances_N: np.ndarray, accepted_N: np.ndarray) -> dict[str, Any]:
    """Quality of chances of one event: ECE over equal bins of the chance."""
    bin_N = np.minimum((chances_N * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bin_N, accepted_N - chances_N, minlength=BINS))
    return {
        "tokens": len(chances_N),
        "accepted": float(accepted_N.mean()),
        "auroc": auc(chances_N, accepted_N),
        "brier": float(((chances_N - accepted_N) ** 2).mean()),
        "ece": float(gaps.sum() / len(chances_N)),
    }


def _product_bias(test: StopStudy) -> dict[str, list[float]]:
    """Mean predicted and observed share of drafts that survive to each place."""
    reached_G = 1 + np.arange(test.chances_RG.shape[1])
    survived_RG = test.whole.accepted_R[:, None] >= reached_G
    predicted_G = np.cumprod(test.chances_RG, axis=1).mean(axis=0)
    observed_G = survived_RG.mean(axis=0)
    return {"predicted": predicted_G.tolist(), "observed": observed_G.tolist()}
