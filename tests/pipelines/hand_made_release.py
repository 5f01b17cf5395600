"""Tuning and trials written by hand: one sampling setting, arms of known speed."""

import math

from pipelines.gate.conditions import judged
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import VERDICT
from pipelines.measuring.names import CHOICES, PLAIN
from pipelines.outputs import write_json
from tests.pipelines.hand_made_evidence import GOOD, change, gains

RATES = {PLAIN: 50.0, "chain-2": 100.0, "ema": 110.0}


def write_release(tuning, trials, device) -> None:
    """The stages' outputs. Bundle ``auto`` passes, ``hrad`` is refused, ``length`` is open."""
    write_json(tuning / device / CHOICES, [choice()])
    for name, evidence in (("auto", GOOD), ("hrad", change(**gains(0.0))), ("length", change(**gains(0.03, 0.02)))):
        record = judged(evidence, Bounds())
        write_json(trials / name / device / VERDICT, record)


def choice(winner: str = "ema") -> dict:
    """Tuning's record: replay had promised twice as much of a gain over plain decoding as validation prompts then showed."""
    candidates = [
        {"name": name, "served": {}, "family": name, "predicted": 2 * rate - 50, "speedup": speedup(rate)}
        for name, rate in RATES.items()
    ]
    rivals = [name for name in (PLAIN, "chain-2") if name != winner]
    score = {name: {"prompts": 9, "gain": interval(RATES[winner] / RATES[name] - 1)} for name in rivals}
    return {"setting": "T=0", "winner": winner, "static": "chain-2", "candidates": candidates, "score": score}


def speedup(rate: float) -> dict:
    predicted, value = math.log((2 * rate - 50) / 50), math.log(rate / 50)
    return {"predicted": predicted, "measured": value, "documents": 3, "value": value, "error": 0.01}


def interval(gain: float) -> dict:
    return {"value": gain, "low": gain - 0.05, "high": gain + 0.05}
