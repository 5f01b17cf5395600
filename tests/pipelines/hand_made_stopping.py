"""A measurement of stop rules written by hand: one sampling setting, two documents."""

from pipelines.measuring.decoding_table import DECODES, write_table
from pipelines.measuring.names import PLAIN, PROVENANCE
from pipelines.measuring.stopping.names import CHAIN, CONFIDENCE, DECODING, DYNAMIC, FORK, RULE
from pipelines.outputs import write_json

RATES = {
    PLAIN: (PLAIN, 50.0),
    "chain-2": (CHAIN, 100.0),
    "chain-4": (CHAIN, 90.0),
    "confidence-0.2": (CONFIDENCE, 104.0),
    "roc": (RULE, 95.0),
    "early_stop-1": (RULE, 110.0),
    "fork-4.2": (FORK, 80.0),
    "fork-4.2 early_stop-1": (DYNAMIC, 88.0),
}


def figure(value):
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def record(auroc):
    """What the stopper stage says of a model."""
    gains = {
        "static": 0.0,
        "confidence": 0.02,
        "paper": -0.05,
        "model": 0.06,
        "asked": 0.01,
        "asked for nothing": 0.07,
        "perfect": 0.3,
    }
    policies = {
        name: {"tokens_per_second": 100 * (1 + gain), "block_efficiency": 2.0, "submitted": 2.0, "gain": figure(gain)}
        for name, gain in gains.items()
    }
    quality = {"tokens": 400, "accepted": 0.6, "auroc": auroc, "brier": 0.15, "ece": 0.03}
    return {
        "tokens": {"all": quality, "0": quality},
        "product_bias": {"predicted": [0.6, 0.4], "observed": [0.62, 0.41]},
        "parts": {"T=1": {"static_length": 2, "epsilon": 0.2, "policies": policies}},
        "settings": [],
        "documents": 2,
        "rounds": 100,
    }


def write_stopping(folder, records) -> None:
    """The stages' outputs: a table in ``folder``, one record per model in ``records``."""
    rows = []
    for split in ("validation", "test"):
        for prompt in ("a", "b"):
            who = {"setting": "T=1", "prompt": prompt, "document": f"d{prompt}", "slice": "code", "prompt_tokens": 10}
            for order, (name, (family, rate)) in enumerate(RATES.items()):
                seconds = 60 / rate
                phases = {f"seconds_{phase}": seconds / 10 for phase in ("draft", "target", "verify", "wait", "rest")}
                counts = {"tokens": 60, "emitted": 59, "rounds": 20, "drafted": 40, "levels": 40, "accepted": 39}
                counts |= {"rolled_back": 1, "trimmed": 0, "segments": 20, "bypassed": 0}
                arm = {
                    "family": family,
                    "drafter": name,
                    "verifier": "block",
                    "split": split,
                    "order": order,
                    "repeat": 0,
                }
                times = {"seconds": seconds, "seconds_rounds": seconds, "seconds_controller": 0.02 * seconds}
                rows.append({**who, **arm, **counts, **phases, **times})
    write_table(folder / DECODING, rows, DECODES)
    write_json(folder / PROVENANCE, {"capped": False, "parameters": {"beta": 0.4}})
    for name, auroc in (("early_stop-1", 0.8), ("logistic", 0.7)):
        write_json(records / f"{name}.json", record(auroc))
