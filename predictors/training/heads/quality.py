"""What a fitted head is worth on texts that chose nothing: metrics of its probabilities, tokens per second of its policies; and
both in short.

head           what is served           head_argmax   the head's likeliest class instead (asked, whether it pays or not)
confidence     draft while max q >= ε   best_static   the best static length            oracle   knows what will be accepted
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from predictors.decision_rule import Calibration
from predictors.latency.profile import LatencyProfile
from predictors.replay.grid import Totals
from predictors.training.heads.baselines import Baseline
from predictors.training.heads.roots import Rows
from predictors.training.heads.rules import Chosen
from predictors.training.heads.served import Choice, Said, Served
from predictors.training.heads.target import Target
from predictors.training.intervals import DocumentBootstrap, percentiles
from predictors.training.metrics import MacroAuc, evaluate, mean_absolute_error
from predictors.training.predictor import tracked_name
from predictors.training.rule_choice import oracle, worth

TRACKED = ("accuracy", "mean_absolute_error", "macro_f1", "macro_auc", "nll", "brier", "ece")
SHOWN = (*TRACKED, "macro_auc_interval", "auc")


def measured_metrics(
    rows: Rows, said: Said, calibration: Calibration, baselines: Mapping[str, Baseline], target: Target, replicates: int
) -> dict[str, Any]:
    """Metrics of the head, of the same without calibration, and of the baselines."""
    logits_PL = said.of_rows(rows)[0]
    plain = Calibration(1.0, (0.0,) * len(target.classes))
    predicted = {
        name: made.probabilities(logits_PL).numpy()
        for name, made in (("head", calibration), ("head_uncalibrated", plain))
    }
    predicted |= {name: baseline(rows) for name, baseline in baselines.items()}
    bootstrap = DocumentBootstrap(rows.document_P, replicates, 0)
    return {name: _metrics(made, rows.labels(target), target, bootstrap) for name, made in predicted.items()}


def _metrics(
    probabilities_PL: np.ndarray, label_P: np.ndarray, target: Target, bootstrap: DocumentBootstrap
) -> dict[str, Any]:
    record = evaluate(probabilities_PL, label_P, target.classes)
    if target.ordered:
        record["mean_absolute_error"] = mean_absolute_error(probabilities_PL, label_P)
    replicates = bootstrap.each(MacroAuc(probabilities_PL, label_P))
    return record | {"macro_auc_interval": percentiles(record["macro_auc"], replicates)}


def measured_policies(test: Served, chosen: Chosen, profile: LatencyProfile) -> dict[str, Any]:
    """Every policy on test texts, with its gain over the best static one."""
    argmax = tuple(rule.argmax for rule in chosen.tried)
    policies: dict[str, tuple[Choice, Choice]] = {
        "head": chosen.policy,
        "head_argmax": (argmax[0], argmax[1]),
        "confidence": (chosen.epsilon, chosen.retained_gamma),
        "best_static": chosen.static,
    }
    totals = {name: test.totals(*policy) for name, policy in policies.items()}
    if test.decodes.retained is None:
        totals["oracle"] = oracle(test.decodes.idle, profile)
    found = {name: worth(one, totals["best_static"], test.decodes.document_X) for name, one in totals.items()}
    for name, policy in policies.items():
        found[name]["length_accuracy"] = _length_accuracy(test, policy, totals[name])
    return found


def _length_accuracy(test: Served, policy: tuple[Choice, Choice], made: Totals) -> float:
    """The share of rounds that submit exactly the tokens, of those of γ that may be drafted, that are accepted (SpecBranch,
    Fig. 3c)."""
    stages = [one for one in (test.decodes.idle, test.decodes.retained) if one is not None]
    best_KXS = [np.minimum(np.minimum(one.would_XS, one.cap_XS), test.roots.spec.gamma) for one in stages]
    submitted_XSM = test.submitted(*policy)
    states = submitted_XSM.shape[2] // len(stages)  # of either stage
    right_XSM = submitted_XSM == np.repeat(np.stack(best_KXS, axis=2), states, axis=2)
    return float(right_XSM[made.visits_XSM].mean())


def measured_quality(quality: Mapping[str, Any]) -> dict[str, Any]:
    """What a card says of it. Above all settings stands the worst calibration error, which the gate judges."""
    parts = {
        name: {
            "metrics": {key: one["metrics"]["head"][key] for key in SHOWN if key in one["metrics"]["head"]},
            "policies": one["policies"],
        }
        for name, one in quality["parts"].items()
    }
    errors = [one["metrics"]["ece"] for one in parts.values()]
    sizes = {name: quality[name]["test"] for name in ("rows", "documents")}
    return {"split": "test", **sizes, "metrics": {"ece": max(errors)}, "parts": parts}


def tracked(quality: Mapping[str, Any]) -> dict[str, float | None]:
    """Flat metrics, each with its setting's name as trackers allow it."""
    found: dict[str, float | None] = {}
    for name, one in quality["parts"].items():
        made: dict[str, float | None] = {}
        for which, suffix in (("head", ""), ("head_uncalibrated", "_uncalibrated")):
            metrics = one["metrics"][which]
            made |= {f"test_{key}{suffix}": metrics[key] for key in TRACKED if key in metrics}
        made |= {f"test_tokens_per_second_{key}": worth["tokens_per_second"] for key, worth in one["policies"].items()}
        made["test_gain"] = one["policies"]["head"]["gain"]["value"]
        made["calibration_temperature"] = one["calibration"]["temperature"]
        found |= {f"{key}/{tracked_name(name)}": value for key, value in made.items()}
    return found


def sentence(quality: Mapping[str, Any]) -> str:
    """What the head comes to."""
    told = []
    for name, one in quality["parts"].items():
        gain, area = one["policies"]["head"]["gain"], one["metrics"]["head"]["macro_auc"]
        rules = any(one["thresholds"][which] for which in ("rule", "retention"))
        served = "its rule" if rules else f"static {one['static_length']}"
        known = "undefined" if area is None else f"{area:.3f}"
        told.append(
            f"{name}: {served}, {gain['value']:+.1%} replayed tokens/s over the best static length, macro AUROC {known}"
        )
    return "; ".join(told)
