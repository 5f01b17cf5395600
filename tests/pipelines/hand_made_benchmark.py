"""A benchmark and a calibration written by hand: ten arms of known speed on six prompts."""

import numpy as np

from pipelines import benchmark
from pipelines.measuring.measurement_table import write_measurements, write_replays
from pipelines.outputs import write_json

PHASES = ("draft", "target", "verify", "controller", "rest")
SPEED = {  # tokens per second of each arm
    "autoregressive": 100,
    "plain_hf_forward": 82,
    "hf_generate": 80,
    "hf_assisted": 120,
    "chain-1": 130,
    "chain-3": 160,
    "confidence-0.4": 150,
    "entropy": 160,
    "hrad": 176,
    "length": 150,
}


def interval(value):
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


def calibration(feature_set: str, target: str = "classes") -> dict:
    bins = [{"from": 0.4, "rows": 10, "confidence": 0.45, "accuracy": 0.5}]
    metrics = {
        "macro_auc": 0.7,
        "macro_auc_interval": interval(0.7),
        "accuracy": 0.6,
        "macro_f1": 0.5,
        "ece": 0.03,
        "brier": 0.5,
        "nll": 0.9,
        "auc": {"none": 0.8, "some": 0.6, "all": None},
        "confusion": [[5, 3, 1], [2, 9, 2], [0, 4, 3]],
        "reliability": bins,
    }
    names = ("head", "head_uncalibrated", "majority", "previous_label", "draft_confidence")
    policies = ("head", *names[2:], "confidence", "best_static", "oracle")
    values = {name: interval(2.0) | {"submitted_per_round": 3.0, "passes_per_round": 3.0} for name in policies}
    return {
        "target": target,
        "feature_set": feature_set,
        "gamma": 3,
        "sampling_temperature": 0.0,
        "rows": {"train": 100, "validation": 20, "test": 29},
        "documents": {"train": 10, "validation": 4, "test": 6},
        "class_shares": {"natural": [0.3, 0.5, 0.2], "training": [0.33, 0.33, 0.34], "test": [0.3, 0.5, 0.2]},
        "draft_cost": 0.1,
        "test": {
            "metrics": {name: dict(metrics) for name in names},
            "decision": values,
            "gain_over_best_static": {name: interval(0.05) for name in policies},
        },
    }


def measurement_rows(speed=SPEED, noise=0.05) -> list[dict]:
    generator = np.random.default_rng(0)
    rows = []
    for index in range(6):
        place = {
            "split": "test",
            "prompt": f"p{index}",
            "document": f"d{index // 2}",
            "slice": ("code", "prose")[index % 2],
        }
        for temperature in (0.0, 1.0):
            pace = generator.uniform(0.5, 2.0)  # what a prompt does to all arms
            for repeat in range(2):
                for order, (arm, rate) in enumerate(speed.items()):
                    seconds = 60 / rate * pace * (1 + noise * generator.uniform()) * (1 + 9 * (repeat == 1))
                    row = {**place, "temperature": temperature, "repeat": repeat, "arm": arm, "order": order}
                    row |= {"prompt_tokens": 20, "tokens": 60, "seconds": seconds, "output": [1, 2]}
                    rows.append(row if arm.startswith("hf") else row | rounds(arm, seconds))
    return rows


def rounds(arm, seconds) -> dict:
    drafted = 0 if arm == "autoregressive" else 60
    half = drafted // 2
    counts = {"rounds": 30, "drafted": drafted, "levels": drafted, "accepted": half, "emitted": 59, "rolled_back": half}
    return {
        **counts,
        "trimmed": 0,
        "segments": 30,
        "accepted_histogram": [10, 10, 10] if drafted else [30],
        "uncut_histogram": [9, 8, 7, 4][: 2 if arm == "chain-1" else 4] if drafted else [30],
        **{f"seconds_{phase}": seconds / 5 for phase in PHASES},
    }


def write_benchmark(folder, rows, calibrated=(0.0,)) -> None:
    write_measurements(folder / benchmark.MEASUREMENTS, "p", rows)
    loops = [
        {"arm": arm, "prompt": f"p{i}", "document": f"d{i}", "temperature": t, "repeat": 0, "loop": 1.05, "replay": 1.0}
        for arm in ("autoregressive", "chain-3")
        for i in range(3)
        for t in (0.0, 1.0)
    ]
    write_replays(folder / benchmark.REPLAYS, "p", loops)
    sweep = {"static": {"chain-1": 130.0, "chain-3": 160.0}, "confidence": {"confidence-0.4": 150.0}}
    choices = [
        {"temperature": t, "family": family, "arm": max(s, key=s.get), "tokens_per_second": s}
        for t in (0.0, 1.0)
        for family, s in sweep.items()
    ]
    ours = [arm for arm in SPEED if not arm.startswith("hf")]
    bundle = {
        "selection": {"predictor": "extended", "reason": "extended decides best."},
        "thresholds": {"static_gamma": 3, "epsilon": 0.2, "max_distance": 3.0},
        "calibrated_settings": [[t, 0, 1.0] for t in calibrated],
        "gamma": 3,
    }
    exact = [{"arm": arm, "exact_float32": True, "differs": [None]} for arm in ours]
    findings = {"choices": choices, "capped": False, "exactness": exact, "notes": ["<b>note</b>"], "bundle": bundle}
    findings["forward_agreement"] = {"target": {"compact": 2e-6, "rounding": 3e-6}}
    write_json(folder / benchmark.FINDINGS, findings)
    device = {"slug": "toy-1c", "cpu": "toy", "cores": 1, "gpus": [], "bfloat16_flags": [], "system": "Linux"}
    origin = {
        "commit": "abc",
        "uncommitted_changes": False,
        "versions": {"python": "3", "torch": "2"},
        "device": device,
        "date": "2026-01-01",
        "pair": "p",
        "threads": 1,
        "models": {name: {"dtype": "float32", "forward": "compact"} for name in ("target", "draft")},
        "parameters": {"max_new_tokens": 60, "repeats": 2, "epsilons": [0.4]},
        **{f"{name}_sha256": "0" * 64 for name in ("pair", "prompts", "bundle", "code")},
    }
    write_json(folder / benchmark.PROVENANCE, origin)
