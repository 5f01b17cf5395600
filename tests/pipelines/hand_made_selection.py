"""A measurement of selectors written by hand: two rules, one sampling setting, two documents."""

from dataclasses import asdict

from pipelines.measuring.names import PLAIN, PLAIN_FAMILY, PROVENANCE
from pipelines.measuring.tables import (
    BUNDLE,
    FIRST_ROUNDS,
    FIRST_ROUNDS_ROWS,
    PRICES,
    SELECTOR,
    STATIC_TREE,
    write_table,
)
from pipelines.outputs import write_json
from predictors.latency.actions import Prices
from tests.pipelines.hand_made_timed import decode, steps

STATIC = "static"
ACTIONS = ("chain-2", "delayed-2.0.1")
RULES = ("specinfer", "traversal")
RATES = {(STATIC, "specinfer"): 100.0, (SELECTOR, "specinfer"): 110.0}
RATES |= {(STATIC, "traversal"): 105.0, (SELECTOR, "traversal"): 104.0}
FAMILIES = {STATIC: (STATIC_TREE, "static tree"), SELECTOR: (BUNDLE, "selector")}
STEP_SECONDS = {
    "specinfer": (2, 0.02),
    "traversal": (2, 0.0225),
}  # levels of the static tree, a chain of 2, and a step's seconds


def figure(value, low, high):
    return {"value": value, "low": low, "high": high}


def record(rule, gain, oracle):
    """What stage ``fit`` says of a rule's selector; ``gain`` and ``oracle`` are over static."""

    def policy(gained):
        speed = figure(100 * (1 + gained), 90 * (1 + gained), 110 * (1 + gained))
        return {
            "block_efficiency": figure(2 + gained, 1.9, 2.4),
            "tokens_per_second": speed,
            "gain": figure(gained, gained - 0.02, gained + 0.02),
        }

    policies = {STATIC: 0.0, SELECTOR: gain, "oracle": oracle, "oracle_same_draws": oracle + 0.1}
    part = {name: policy(gained) for name, gained in policies.items()}
    if oracle > 0:
        part["gap_closed"] = figure(gain / oracle, 0.1, 0.9)
    uses = {"code": {"chain-2": 0.75, "delayed-2.0.1": 0.25}, "prose": {"chain-2": 1.0}}
    return {
        "family": "tree",
        "rule": rule,
        "margin": 0.01,
        "trusted": 1.0,
        "candidate": "tokens-scalars",
        "candidates": {},
        "validation_tokens_per_second": 100.0,
        "roots": 40,
        "documents": 2,
        "static_actions": {"T=1": "chain-2"},
        "parts": {"all": part, "T=1": part},
        "uses": uses,
    }


def selection_decodes() -> list[dict]:
    """Selectors, their static trees and plain decoding on two prompts; only a selector's controller takes time."""
    rows = []
    for prompt in ("a", "b"):
        rows.append(decode(PLAIN, PLAIN_FAMILY, "", prompt, 60 / 50))
        for (policy, rule), rate in RATES.items():
            prefix, family = FAMILIES[policy]
            deciding = 0.02 * 60 / rate if policy == SELECTOR else 0.0
            rows.append(decode(prefix + rule, family, rule, prompt, 60 / rate, seconds_controller=deciding))
    return rows


def selection_rounds() -> list[dict]:
    """Of the static trees."""
    rows = {STATIC_TREE + rule: step for rule, step in STEP_SECONDS.items()}
    return [step for row in selection_decodes() if row["arm"] in rows for step in steps(row, *rows[row["arm"]])]


def write_selection(folder, records) -> None:
    """The stages' outputs: first rounds and prices in ``folder``, one record per rule in ``records``."""
    rounds = []
    for prompt in ("a", "b"):
        for rule in RULES:
            expected = 2.0 if rule == "specinfer" else 3.0  # decoded 2.0: traversal's labels are off
            place = {"setting": "T=1", "prompt": prompt, "document": f"d{prompt}", "root": 0}
            rounds.append({**place, "rule": rule, "action": "chain-2", "emitted": 2.0, "expected": expected})
    write_table(folder / FIRST_ROUNDS, rounds, FIRST_ROUNDS_ROWS)
    made = Prices((1, 100), ((0.022, 0.03),) * 2, 0.0003, "hash")
    write_json(folder / PRICES, {rule: {"actions": ACTIONS, "prices": asdict(made)} for rule in RULES})
    write_json(folder / PROVENANCE, {"capped": False})
    write_json(records / "delayed_tree-specinfer.json", record("specinfer", 0.05, 0.1))
    write_json(records / "delayed_tree-traversal.json", record("traversal", 0.0, -0.08))
