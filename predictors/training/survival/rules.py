"""Which rate the survival model is served with, at every sampling setting, and what model and rule are worth on other texts.

    calibration      loss = - Σ_rounds Σ_g log P(the chain survives token g or not | Π_{i<=g} P̂_i)     one scale, one bias
    chosen           argmax over ρ and least lengths, by replayed tokens per second on validation texts (`training.rule_choice`)
    tokens           AUROC, Brier score and calibration error of `now` on tested tokens
    product_bias     mean Π P̂ along drafts (predicted) beside the share of chains that survived (observed)
    policies         static, the model's, forced, asked for nothing, and the oracle's

Products are calibrated under the verifier that serves: what a model misses is alike along a draft. Shape suffixes: X readings, V
rounds, G positions of a chain, F features, N tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictors.latency.profile import LatencyProfile
from predictors.replay.grid import Totals
from predictors.stopping.rule import StopCalibration
from predictors.survival.network import NEXT, NOW, SurvivalArrays
from predictors.survival.rule import SurvivalRule, SurvivalSetting
from predictors.training.rule_choice import oracle, worth
from predictors.training.stops.calibration import product_calibration
from predictors.training.stops.quality import binary
from predictors.training.survival.grid import Draft, Source, SurvivalGrid, Walk


@dataclass(frozen=True)
class Played:
    """A model on texts at one sampling setting, with ``question`` seconds a token and chains priced at ``costs``."""

    grid: SurvivalGrid
    served: SurvivalArrays
    calibration: StopCalibration
    costs: Sequence[float]
    question: float
    max_distance: float
    static_length: int

    def stopped(self, rule: SurvivalRule, question: float | None = None) -> Totals:
        """What ``rule`` makes of the model; ``question``: seconds of one, if not as measured."""
        walk = Walk.of(self.grid.starts, lambda *rounds: self.drafted(rule, *rounds))
        return self.grid.totals(walk, self.question if question is None else question)

    def under(self, made: SurvivalSetting, source: Source) -> Totals:
        """What is done at a setting, where no ``source`` takes over."""
        return self.grid.totals(Walk.of(self.grid.starts, self.draft(made), source), self.question)

    def draft(self, made: SurvivalSetting) -> Draft:
        """The chains of that."""
        if made.pays:
            return lambda *rounds: self.drafted(made.rule, *rounds)
        return self.grid.chains(made.static_length)

    def static(self, length: int) -> Totals:
        """Always ``length`` tokens."""
        return self.grid.totals(self.grid.static(length), self.question)

    def drafted(self, rule: SurvivalRule, *rounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Submitted tokens and queries of rounds [V], as `predictors.controllers.survival` decides."""
        starts, depth = self.grid.starts, self.grid.starts.depth
        logits_VG2, distance_VG = self.served(self.grid.features(*rounds))
        survival_VG = np.cumprod(chances(logits_VG2[..., NOW], self.calibration), axis=1)
        following_VG = chances(logits_VG2[..., NEXT], StopCalibration())
        stop_VG = survival_VG * following_VG <= np.array(rule.needed(self.costs))[1:]
        stop_VG[:, : rule.least - 1] = False
        far_VG = distance_VG > self.max_distance
        far_VG[:, -1] = False  # nothing is asked about the last token
        cap_V = starts.cap_XS[rounds[0], rounds[1]]
        submitted_V = np.minimum(stop_VG.argmax(axis=1) + 1, cap_V)
        known_V = np.minimum(submitted_V, depth - 1)
        asked_V = np.where(known_V >= rule.least, known_V, 0)
        far_V = np.where(far_VG.any(axis=1), np.maximum(far_VG.argmax(axis=1) + 1, rule.least), depth + 1)
        aside_V = far_V <= asked_V
        submitted_V = np.where(aside_V, np.minimum(np.maximum(far_V, self.static_length), cap_V), submitted_V)
        return submitted_V, np.where(aside_V, far_V, asked_V)


def chances(logits: np.ndarray, calibration: StopCalibration) -> np.ndarray:
    """Calibrated probabilities of logits of any shape."""
    return np.asarray(1 / (1 + np.exp(-(calibration.scale * logits + calibration.bias))))


def calibrated(grids: Sequence[SurvivalGrid], served: SurvivalArrays, length: int) -> StopCalibration:
    """On the rounds of a static chain of ``length`` tokens."""
    columns = zip(*(said(grid, served, length) for grid in grids), strict=True)
    logits_VG, survives_VG, known_VG = map(np.concatenate, columns)
    scale, bias, _ = product_calibration(logits_VG, survives_VG, known_VG.astype(float), rises=False)
    return StopCalibration(scale, bias)


def said(grid: SurvivalGrid, served: SurvivalArrays, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Along rounds of a static chain of ``length`` tokens [V, G]: logits of `now`, whether the chain survives each token, and
    whether it was drafted."""
    walk, position_G = grid.static(length), np.arange(length)
    would_V1, cap_V1 = (values[:, None] for values in grid.would(walk))
    features_VGF = grid.features(walk.reading_V, walk.start_V, walk.rejected_V, walk.luck_V)[:, :length]
    logits_VG2, _ = served(features_VGF)
    return logits_VG2[..., NOW], np.asarray(would_V1 > position_G), np.asarray(position_G < cap_V1)


def quality(grid: SurvivalGrid, served: SurvivalArrays, calibration: StopCalibration, length: int) -> dict[str, Any]:
    """Along the rounds of a static chain of ``length`` tokens."""
    logits_VG, survives_VG, known_VG = said(grid, served, length)
    chances_VG = chances(logits_VG, calibration)
    before_VG = np.insert(survives_VG, 0, True, axis=1)[:, :-1]
    tested_VG = known_VG & before_VG
    whole_V = known_VG.all(axis=1)
    accepted_N, chances_N = survives_VG[tested_VG], chances_VG[tested_VG]
    return {
        "tokens": binary(chances_N, accepted_N, np.ones(len(accepted_N))),
        "product_bias": {
            "predicted": np.cumprod(chances_VG[whole_V], axis=1).mean(axis=0).tolist(),
            "observed": survives_VG[whole_V].mean(axis=0).tolist(),
        },
        "rounds": int(whole_V.sum()),
    }


def scored(test: Played, made: SurvivalSetting, profile: LatencyProfile) -> dict[str, Any]:
    """Every policy's tokens per second on texts that chose nothing."""
    always, asked = test.static(made.static_length), test.stopped(made.rule)
    policies = {
        "static": always,
        "model": asked if made.pays else always,
        "asked": asked,
        "asked for nothing": test.stopped(made.rule, question=0.0),
    }
    starts = test.grid.starts
    scores = {name: worth(totals, always, starts.document_X) for name, totals in policies.items()}
    scores["perfect"] = worth(oracle(starts, profile), always, starts.document_X)
    queries = float(asked.asked_X.sum() / asked.rounds_X.sum())
    return {"static_length": made.static_length, "asks": made.pays, "queries": queries, "policies": scores}
