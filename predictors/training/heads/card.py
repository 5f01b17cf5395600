"""A fitted head as it is exported: the bundle's card, its quality on test texts, and both in short."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from predictors.decision_rule import ClassSetting, LengthSetting
from predictors.sampling import SamplingSettings
from predictors.training.heads.rules import Chosen
from predictors.training.heads.target import Target
from predictors.training.predictor import tracked_name

CONTROLLERS = {False: ("hrad", ClassSetting), True: ("length", LengthSetting)}  # by whether classes are lengths
SHOWN = ("accuracy", "mean_absolute_error", "macro_f1", "macro_auc", "macro_auc_interval", "auc", "nll", "brier", "ece")
TRACKED = ("accuracy", "mean_absolute_error", "macro_f1", "macro_auc", "nll", "brier", "ece")


def card_settings(target: Target, settings: SamplingSettings, calibration: Any, chosen: Chosen) -> dict[str, Any]:
    """A setting's entry on the card."""
    kind: Any = CONTROLLERS[target.ordered][1]
    statics = chosen.static_gamma, chosen.retained_gamma
    made = kind(settings, calibration, *statics, chosen.rule, chosen.retention, *chosen.tried)
    return asdict(made)


def part(
    settings: dict[str, Any],
    chosen: Chosen,
    metrics: dict[str, Any],
    policies: dict[str, Any],
    validation: dict[str, Any],
) -> dict[str, Any]:
    """What is served at a setting and what it is worth on test texts."""
    thresholds = ("static_gamma", "retained_gamma", "rule", "retention")
    return {
        "calibration": settings["calibration"],
        "thresholds": {name: settings[name] for name in thresholds},
        "rules": {"head": settings["rule"], "tried": settings["tried"], "confidence": chosen.epsilon},
        "static_length": chosen.static_gamma,
        "metrics": metrics,
        "policies": policies,
        "validation": validation,
    }


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
