"""Calibrate a trained head on natural-prior validation rows, then measure it once on test rows.

Chosen on validation: temperature, decision rule of every policy. Chosen on training and validation rows: the best static γ.
Measured on test (documents the controller never saw): metrics of the head and of the baselines, what each drafting policy is
worth, and how often it submits exactly the tokens that are accepted (``length_accuracy``; SpecBranch, Fig. 3c).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from predictors.calibration import Calibration
from predictors.decision_rule import (
    LENGTH_CHOICES,
    DecisionRule,
    HRADThresholds,
    LengthRule,
    LengthThresholds,
)
from predictors.features import FeatureSpec
from predictors.network import HRADNetwork, squared_distance
from predictors.training.balance import natural_shares as class_shares
from predictors.training.baselines import Baseline, fit_baselines
from predictors.training.bootstrap import DocumentBootstrap, interval
from predictors.training.decision import Costs
from predictors.training.fit import prior_shift
from predictors.training.label_table import LabelTable
from predictors.training.metrics import evaluate, macro_auc, mean_absolute_error
from predictors.training.policies import Policies, Rule, Staged, choose_policies
from predictors.training.target import CLASS, Target
from predictors.training.temperature import fit_temperature

EPSILONS = (0.0, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
NEVER = 1.01  # a probability no class reaches
PROBABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class CalibrateConfig:
    """How a head is calibrated and measured.

    ``decoding``: ``chain``, or ``branches`` for branch-parallel decoding, whose thresholds are chosen for drafting and for
    retention. ``draft_cost``: a drafted token in target passes (of ``branches`` its draft pass alone); ``None`` stands for what
    the latency profile says, which then also prices decisions, and for branches the target's passes. ``branch_hit``: the
    share of branch points hit behind a block accepted whole; ``None`` counts it in the traces. ``epsilons``: the confidence
    thresholds tried; ``probabilities``: H-RAD's thresholds of "none" and "all" tried besides the argmax (empty: argmax only). The
    largest trusted squared distance is ``distance_margin`` times the ``distance_quantile`` on validation rows.
    """

    decoding: str = "chain"
    draft_cost: float | None = None
    branch_hit: float | None = None
    epsilons: tuple[float, ...] = EPSILONS
    probabilities: tuple[float, ...] = PROBABILITIES
    prior_correction: bool = True
    distance_quantile: float = 0.999
    distance_margin: float = 2.0
    bootstrap_replicates: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.decoding not in ("chain", "branches"):
            raise ValueError(f"decoding must be chain or branches, got {self.decoding!r}.")
        if self.draft_cost is not None and self.draft_cost < 0:
            raise ValueError(f"draft_cost must be >= 0 target passes, got {self.draft_cost}.")
        if not self.epsilons or not all(0 <= epsilon <= 1 for epsilon in self.epsilons):
            raise ValueError(f"epsilons must be one or more numbers in [0, 1], got {list(self.epsilons)}.")
        if not all(0 <= probability <= 1 for probability in self.probabilities):
            raise ValueError(f"probabilities must lie in [0, 1], got {list(self.probabilities)}.")
        if not 0 < self.distance_quantile <= 1 or self.distance_margin <= 0:
            raise ValueError("distance_quantile must lie in (0, 1] and distance_margin must be positive.")
        if self.branch_hit is not None and (self.decoding == "chain" or not 0 <= self.branch_hit <= 1):
            raise ValueError(f"branch_hit must lie in [0, 1], and only branches have one, got {self.branch_hit}.")
        if self.bootstrap_replicates < 1:
            raise ValueError(f"bootstrap_replicates must be >= 1, got {self.bootstrap_replicates}.")

    def rules_of(self, target: Target) -> Sequence[Rule]:
        """Every rule tried for a head of that target, the argmax first."""
        if not target.ordered:
            return self.rules
        assert self.draft_cost is not None
        return [LengthRule(choice, self.draft_cost) for choice in LENGTH_CHOICES]

    @property
    def rules(self) -> list[DecisionRule]:
        """H-RAD's: the argmax and all pairs of thresholds, at every ε."""
        thresholds = (*self.probabilities, NEVER) if self.probabilities else ()
        pairs = [(None, None), *product(thresholds, repeat=2)]
        return [DecisionRule(epsilon, none, every) for epsilon in self.epsilons for none, every in pairs]


@dataclass(frozen=True)
class Calibrated:
    """Calibration and thresholds of a head, the ``policies`` it is measured among, and the record of what it is worth."""

    calibration: Calibration
    thresholds: HRADThresholds | LengthThresholds
    policies: Policies
    record: dict[str, Any]


def calibrate(
    network: HRADNetwork,
    spec: FeatureSpec,
    training_shares: Sequence[float],
    natural_shares: Sequence[float],
    table: LabelTable,
    config: CalibrateConfig,
    costs: Costs,
    predicts: str = CLASS,
) -> Calibrated:
    """Calibrate ``network``, a head of the target named ``predicts``, and measure it.

    Parameters
    ----------
    training_shares, natural_shares
        Class shares of the training rows after and before balancing.
    costs
        What rounds cost; of branch-parallel decoding the hit share is filled in here.
    """
    target = Target(predicts, spec.gamma)
    table = table.of_decoding(config.decoding == "branches")
    train, validation, test = (table.rows(split) for split in ("train", "validation", "test"))
    logits, distance = outputs(network, spec, validation)
    calibration = fit_calibration(logits, target.labels(validation), natural_shares, training_shares, config)
    predictors = {"head": Baseline(_predict(network, spec, calibration), not spec.decides_before_drafting)}
    predictors |= fit_baselines(train, target)
    known = table.take(np.flatnonzero(np.isin(table.split, ("train", "validation"))))
    costs = _filled_in(costs, config, known)
    tried = config.rules_of(target)
    policies = choose_policies(predictors, known, validation, tried, config.epsilons, costs)
    max_distance = config.distance_margin * float(np.quantile(distance, config.distance_quantile))
    thresholds = _thresholds(max_distance, policies.static_gamma, policies.rules["head"], config.decoding)
    raw = replace(calibration, temperature=1.0, bias=(0.0,) * len(target.classes))
    uncalibrated = Baseline(_predict(network, spec, raw), predictors["head"].reads_first_law)
    parts = {"train": train, "validation": validation, "test": test}
    record = {
        "rows": {part: len(rows) for part, rows in parts.items()},
        "documents": {part: len(np.unique(rows.document)) for part, rows in parts.items()},
        "target": target.name,
        "classes": list(target.classes),
        "class_shares": {
            "natural": list(natural_shares),
            "training": list(training_shares),
            "test": list(class_shares(target.labels(test), len(target.classes))),
        },
        "calibration": asdict(calibration),
        "thresholds": asdict(thresholds),
        "rules": {name: asdict(rule) for name, rule in policies.rules.items()},
        "confidence_epsilon": asdict(policies.epsilon),
        "decoding": config.decoding,
        "draft_cost": config.draft_cost,
        "costs": asdict(policies.costs),
        "validation": {
            "metrics": _metrics(predictors["head"].predict(validation), validation, target),
            "decision": policies.values(validation),
        },
        "test": _measured(policies, predictors | {"head_uncalibrated": uncalibrated}, test, target, config),
    }
    return Calibrated(calibration, thresholds, policies, record)


def _measured(
    policies: Policies, predictors: Mapping[str, Baseline], test: LabelTable, target: Target, config: CalibrateConfig
) -> dict[str, Any]:
    """Metrics of the predictors and worth of the policies on ``test`` rows, with intervals over documents."""
    bootstrap = DocumentBootstrap(test.document, config.bootstrap_replicates, config.seed)
    metrics = {name: _metrics(head.predict(test), test, target, bootstrap) for name, head in predictors.items()}
    return {"metrics": metrics, **policies.measure(test, bootstrap)}


@torch.inference_mode()
def outputs(network: HRADNetwork, spec: FeatureSpec, table: LabelTable) -> tuple[Tensor, np.ndarray]:
    """Raw logits [N, L] and squared distances [N] of a table's rows."""
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
    bias = torch.zeros(len(natural_shares))
    if config.prior_correction:
        bias = prior_shift(tuple(natural_shares), tuple(training_shares))
    return Calibration(fit_temperature(logits, labels, bias), tuple(bias.tolist()))


def _filled_in(costs: Costs, config: CalibrateConfig, known: LabelTable) -> Costs:
    """Of branch-parallel decoding with the hit share, and passes that rise."""
    if config.decoding == "chain":
        return costs
    hit = known.branch_hit if config.branch_hit is None else config.branch_hit
    return replace(costs, passes=_rising(costs.passes), hit=hit)


def _rising(passes: Sequence[float]) -> tuple[float, ...]:
    """The nearest costs that never fall: passes over more tokens cost no less, whatever a noisy machine measured."""
    if not passes:
        return ()
    return tuple(IsotonicRegression().fit_transform(range(len(passes)), passes).tolist())


def _thresholds(
    max_distance: float, static_gamma: Staged[int], rule: Staged[Rule], decoding: str
) -> HRADThresholds | LengthThresholds:
    kind: Any = LengthThresholds if isinstance(rule.draft, LengthRule) else HRADThresholds
    thresholds: HRADThresholds | LengthThresholds = kind(max_distance, static_gamma.draft, rule.draft)
    if decoding == "chain":
        return thresholds
    return replace(thresholds, retention=rule.retention, retained_gamma=static_gamma.retention)  # type: ignore[arg-type]


def _predict(network: HRADNetwork, spec: FeatureSpec, calibration: Calibration) -> Any:
    return lambda table: calibration.probabilities(outputs(network, spec, table)[0]).numpy()


def _metrics(
    probabilities: np.ndarray, table: LabelTable, target: Target, bootstrap: DocumentBootstrap | None = None
) -> dict[str, Any]:
    """What is meaningful for the target, the macro AUC with its interval where there is a ``bootstrap``."""
    labels = target.labels(table).numpy()
    record = evaluate(probabilities, labels, target.classes)
    if target.ordered:
        record["mean_absolute_error"] = mean_absolute_error(probabilities, labels)
    if bootstrap is not None:
        replicates = bootstrap.each(lambda weights: macro_auc(probabilities, labels, weights))
        record["macro_auc_interval"] = interval(record["macro_auc"], replicates)
    return record
