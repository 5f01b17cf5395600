"""What a survival model knows of texts that it never saw, and what its rule makes of them.

    tokens           AUROC, Brier score and calibration error of `now` on tested tokens
    product_bias     mean Π P̂ along drafts (predicted) beside the share of chains that survived (observed)
    policies         static, the model's, forced, asked for nothing, and the oracle's

Shape suffixes: V rounds, G positions of a chain.
"""

from typing import Any

import numpy as np

from predictors.latency.profile import LatencyProfile
from predictors.stopping.rule import StopCalibration
from predictors.survival.network import SurvivalArrays
from predictors.survival.rule import SurvivalSetting
from predictors.training.rule_choice import oracle, worth
from predictors.training.stops.quality import binary
from predictors.training.survival.grid import SurvivalGrid
from predictors.training.survival.rules import Played, chances, said


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
