"""Calibrate a trained head on natural-prior validation rows, then measure it once on test rows.

Chosen on validation: temperature, decision rule of every policy. Chosen on training and validation rows: the best static γ.
Measured on test (documents the controller never saw): metrics of the head and of the baselines, and what each drafting policy
is worth.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from predictors.calibration import Calibration
from predictors.decision_rule import DecisionRule, HRADThresholds
from predictors.features import FeatureSpec
from predictors.network import CLASSES, HRADNetwork, squared_distance
from predictors.training.baselines import Baseline, fit_baselines
from predictors.training.bootstrap import DocumentBootstrap, interval
from predictors.training.decision import Play, Replay
from predictors.training.fit import prior_shift
from predictors.training.label_table import LabelTable
from predictors.training.metrics import evaluate, macro_auc
from predictors.training.temperature import fit_temperature

EPSILONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
NEVER = 1.01  # a probability no class reaches
PROBABILITIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class CalibrateConfig:
    """How a head is calibrated and measured.

    ``draft_cost``: a drafted token in target passes; ``None`` stands for what the latency profile says. ``epsilons``: the
    confidence thresholds tried; ``probabilities``: the thresholds of "none" and "all" tried besides the argmax (empty: argmax
    only). The largest trusted squared distance is ``distance_margin`` times the ``distance_quantile`` on validation rows.
    """

    draft_cost: float | None = None
    epsilons: tuple[float, ...] = EPSILONS
    probabilities: tuple[float, ...] = PROBABILITIES
    prior_correction: bool = True
    distance_quantile: float = 0.999
    distance_margin: float = 2.0
    bootstrap_replicates: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draft_cost is not None and self.draft_cost < 0:
            raise ValueError(f"draft_cost must be >= 0 target passes, got {self.draft_cost}.")
        if not self.epsilons or not all(0 <= epsilon <= 1 for epsilon in self.epsilons):
            raise ValueError(f"epsilons must be one or more numbers in [0, 1], got {list(self.epsilons)}.")
        if not all(0 <= probability <= 1 for probability in self.probabilities):
            raise ValueError(f"probabilities must lie in [0, 1], got {list(self.probabilities)}.")
        if not 0 < self.distance_quantile <= 1 or self.distance_margin <= 0:
            raise ValueError("distance_quantile must lie in (0, 1] and distance_margin must be positive.")
        if self.bootstrap_replicates < 1:
            raise ValueError(f"bootstrap_replicates must be >= 1, got {self.bootstrap_replicates}.")

    @property
    def rules(self) -> list[DecisionRule]:
        """Every rule tried: the argmax and all pairs of thresholds, at every ε."""
        thresholds = (*self.probabilities, NEVER) if self.probabilities else ()
        pairs = [(None, None), *product(thresholds, repeat=2)]
        return [DecisionRule(epsilon, none, every) for epsilon in self.epsilons for none, every in pairs]


@dataclass(frozen=True)
class Calibrated:
    """Calibration and thresholds of a head, and the record of what it is worth."""

    calibration: Calibration
    thresholds: HRADThresholds
    record: dict[str, Any]


def calibrate(
    network: HRADNetwork,
    spec: FeatureSpec,
    training_shares: Sequence[float],
    natural_shares: Sequence[float],
    table: LabelTable,
    config: CalibrateConfig,
) -> Calibrated:
    """Calibrate ``network`` and measure it.

    Parameters
    ----------
    training_shares, natural_shares
        Class shares of the training rows after and before balancing.
    """
    train, validation, test = (table.rows(split) for split in ("train", "validation", "test"))
    logits, distance = outputs(network, spec, validation)
    calibration = fit_calibration(logits, validation.labels, natural_shares, training_shares, config)
    predictors = {"head": Baseline(_predict(network, spec, calibration), not spec.decides_before_drafting)}
    predictors |= fit_baselines(train)
    known = np.isin(table.split, ("train", "validation"))
    static_gamma = _best_static(_replay(table.take(np.flatnonzero(known)), config))
    rules = {name: _best_rule(predictor, validation, config) for name, predictor in predictors.items()}
    epsilon = _best_epsilon(validation, config)
    thresholds = HRADThresholds(
        rule=rules["head"],
        max_distance=config.distance_margin * float(np.quantile(distance, config.distance_quantile)),
        static_gamma=static_gamma,
    )
    uncalibrated = Baseline(_predict(network, spec, Calibration()), predictors["head"].reads_first_law)
    measured = predictors | {"head_uncalibrated": uncalibrated}
    record = {
        "rows": {part: len(rows) for part, rows in _parts(train, validation, test)},
        "documents": {part: len(np.unique(rows.document)) for part, rows in _parts(train, validation, test)},
        "classes": list(CLASSES),
        "class_shares": {
            "natural": list(natural_shares),
            "training": list(training_shares),
            "test": (np.bincount(test.label, minlength=len(CLASSES)) / len(test)).tolist(),
        },
        "calibration": asdict(calibration),
        "thresholds": asdict(thresholds),
        "rules": {name: asdict(rule) for name, rule in rules.items()},
        "confidence_epsilon": epsilon,
        "draft_cost": config.draft_cost,
        "validation": {
            "metrics": evaluate(predictors["head"].predict(validation), validation.label),
            "decision": _values(
                _plays(predictors, validation, rules, epsilon, static_gamma, config), validation, config
            ),
        },
        "test": _measure_test(measured, predictors, test, rules, epsilon, static_gamma, config),
    }
    return Calibrated(calibration, thresholds, record)


@torch.inference_mode()
def outputs(network: HRADNetwork, spec: FeatureSpec, table: LabelTable) -> tuple[Tensor, np.ndarray]:
    """Raw logits [N, 3] and squared distances [N] of a table's rows."""
    reduced = network.reduction(table.features(spec))
    return network.head(reduced), squared_distance(reduced).numpy()


def fit_calibration(
    logits: Tensor,
    labels: Tensor,
    natural_shares: Sequence[float],
    training_shares: Sequence[float],
    config: CalibrateConfig,
) -> Calibration:
    """Bias from the class shares (zero without ``prior_correction``), then the temperature that goes with it."""
    bias = torch.zeros(len(CLASSES))
    if config.prior_correction:
        bias = prior_shift(tuple(natural_shares), tuple(training_shares))
    return Calibration(fit_temperature(logits, labels, bias), tuple(bias.tolist()))


def _predict(network: HRADNetwork, spec: FeatureSpec, calibration: Calibration) -> Any:
    return lambda table: calibration.probabilities(outputs(network, spec, table)[0]).numpy()


def _parts(*tables: LabelTable) -> list[tuple[str, LabelTable]]:
    return list(zip(("train", "validation", "test"), tables, strict=True))


def _replay(table: LabelTable, config: CalibrateConfig) -> Replay:
    assert config.draft_cost is not None, "the latency profile's cost is filled in before"
    return Replay(table.accepted, table.confidence_NG[:, : table.metadata.gamma], config.draft_cost)


def _best_static(replay: Replay) -> int:
    return max(range(replay.gamma + 1), key=lambda tokens: replay.value(replay.static(tokens)))


def _best_epsilon(validation: LabelTable, config: CalibrateConfig) -> float:
    """The ε of highest value on validation rows for the plain confidence rule."""
    replay = _replay(validation, config)
    return max(config.epsilons, key=lambda epsilon: replay.value(replay.confidence(epsilon)))


def _best_rule(predictor: Baseline, validation: LabelTable, config: CalibrateConfig) -> DecisionRule:
    """The rule of highest value on validation rows; of equals the first, which is the argmax."""
    replay = _replay(validation, config)
    probabilities = predictor.predict(validation)
    return max(config.rules, key=lambda rule: replay.value(replay.hrad(probabilities, rule, predictor.reads_first_law)))


def _plays(
    predictors: dict[str, Baseline],
    table: LabelTable,
    rules: dict[str, DecisionRule],
    epsilon: float,
    static_gamma: int,
    config: CalibrateConfig,
) -> dict[str, Play]:
    """Every policy's choices: the head and the baselines as H-RAD, confidence, the best static γ and the oracle."""
    replay = _replay(table, config)
    plays = {
        name: replay.hrad(predictor.predict(table), rules[name], predictor.reads_first_law)
        for name, predictor in predictors.items()
    }
    head = predictors["head"]
    argmax = DecisionRule(rules["head"].epsilon)
    return plays | {
        "head_argmax": replay.hrad(head.predict(table), argmax, head.reads_first_law),
        "confidence": replay.confidence(epsilon),
        "best_static": replay.static(static_gamma),
        "oracle": replay.oracle(),
    }


def _values(plays: dict[str, Play], table: LabelTable, config: CalibrateConfig) -> dict[str, float]:
    replay = _replay(table, config)
    return {name: replay.value(play) for name, play in plays.items()}


def _measure_test(
    measured: dict[str, Baseline],
    predictors: dict[str, Baseline],
    test: LabelTable,
    rules: dict[str, DecisionRule],
    epsilon: float,
    static_gamma: int,
    config: CalibrateConfig,
) -> dict[str, Any]:
    bootstrap = DocumentBootstrap(test.document, config.bootstrap_replicates, config.seed)
    metrics = {name: _metrics(predictor.predict(test), test, bootstrap) for name, predictor in measured.items()}
    replay = _replay(test, config)
    plays = _plays(predictors, test, rules, epsilon, static_gamma, config)
    ratios = {name: bootstrap.ratio(replay.tokens(play), replay.cost(play)) for name, play in plays.items()}
    decision = {
        name: interval(replay.value(play), ratios[name])
        | {"submitted_per_round": float(play.submitted.mean()), "passes_per_round": float(play.passes.mean())}
        for name, play in plays.items()
    }
    static = decision["best_static"]["value"]
    assert static is not None
    gains = {
        name: interval(replay.value(play) / static - 1, ratios[name] / ratios["best_static"] - 1)
        for name, play in plays.items()
    }
    values = [replay.value(replay.static(tokens)) for tokens in range(replay.gamma + 1)]
    return {"metrics": metrics, "decision": decision, "gain_over_best_static": gains, "static_values": values}


def _metrics(probabilities: np.ndarray, test: LabelTable, bootstrap: DocumentBootstrap) -> dict[str, Any]:
    labels = test.label.astype(np.int64)
    record = evaluate(probabilities, labels)
    replicates = bootstrap.each(lambda weights: macro_auc(probabilities, labels, weights))
    return record | {"macro_auc_interval": interval(record["macro_auc"], replicates)}
