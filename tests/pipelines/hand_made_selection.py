"""A measurement of selectors written by hand: two rules, one sampling setting, two documents."""

from dataclasses import asdict

from pipelines.measuring.names import PLAIN, PROVENANCE
from pipelines.measuring.selection.names import ACTION, DECODING, PRICES, ROUNDS, SELECTOR, STATIC
from pipelines.measuring.selection.table import write_tables
from pipelines.outputs import write_json
from predictors.latency.actions import Prices

ACTIONS = ("chain-2", "delayed-2.0.1")
RATES = {(PLAIN, PLAIN): 50.0, (STATIC, "specinfer"): 100.0, (SELECTOR, "specinfer"): 110.0}
RATES |= {(STATIC, "traversal"): 105.0, (SELECTOR, "traversal"): 104.0}
STEP_SECONDS = {"chain-2": 0.02, "delayed-2.0.1": 0.03}


def figure(value, low, high):
    return {"value": value, "low": low, "high": high}


def record(rule, gain, oracle):
    """What the selector stage says of a rule; ``gain`` and ``oracle`` are over static."""

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


def write_selection(folder, records) -> None:
    """The stages' outputs: tables in ``folder``, one record per rule in ``records``."""
    decoding, rounds = [], []
    for prompt in ("a", "b"):
        who = {"setting": "T=1", "prompt": prompt, "document": f"d{prompt}", "slice": "code", "prompt_tokens": 10}
        arms = {(drafter, verifier): 60 / rate for (drafter, verifier), rate in RATES.items()}
        arms |= {(name, "specinfer"): 20 * seconds for name, seconds in STEP_SECONDS.items()}
        for order, ((drafter, verifier), seconds) in enumerate(arms.items()):
            family = drafter if drafter in (PLAIN, STATIC, SELECTOR) else ACTION
            phases = {f"seconds_{name}": seconds / 10 for name in ("draft", "target", "verify", "wait", "rest")}
            row = {**who, **phases, "order": order, "family": family, "drafter": drafter, "verifier": verifier}
            row |= {"tokens": 60, "emitted": 59, "rounds": 20, "drafted": 40, "levels": 40, "bypassed": 0}
            controller = 0.02 * seconds if family == SELECTOR else 0.0
            decoding.append(row | {"seconds": seconds, "seconds_rounds": seconds, "seconds_controller": controller})
        for rule in ("specinfer", "traversal"):
            expected = 2.0 if rule == "specinfer" else 3.0  # decoded 2.0: traversal's labels are off
            place = {"setting": "T=1", "prompt": prompt, "document": f"d{prompt}", "root": 0}
            rounds.append({**place, "rule": rule, "action": "chain-2", "emitted": 2.0, "expected": expected})
    write_tables(folder, {DECODING: decoding, ROUNDS: rounds})
    made = Prices((1, 100), ((0.022, 0.03),) * 2, 0.0003, "hash")
    rules = ("specinfer", "traversal")
    write_json(folder / PRICES, {rule: {"actions": ACTIONS, "prices": asdict(made)} for rule in rules})
    write_json(folder / PROVENANCE, {"capped": False})
    write_json(records / "specinfer.json", record("specinfer", 0.05, 0.1))
    write_json(records / "traversal.json", record("traversal", 0.0, -0.08))
