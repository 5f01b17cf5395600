"""Tuning and trials written by hand: one sampling setting, arms of known speed."""

from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import VERDICT, judged
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
    """Tuning's record."""
    candidates = [
        {"name": name, "served": {}, "family": name, "predicted": 2 * rate - 50, "speedup": record(rate / 50 - 1)}
        for name, rate in RATES.items()
    ]
    rivals = [name for name in (PLAIN, "chain-2") if name != winner]
    over = {name: record(RATES[winner] / RATES[name] - 1) for name in rivals}
    return {"setting": "T=0", "winner": winner, "static": "chain-2", "candidates": candidates, "gains": over}


def record(gain: float) -> dict:
    return {"gain": interval(gain), "prompts": 9, "basis": "clock"}


def interval(gain: float) -> dict:
    return {"value": gain, "low": gain - 0.05, "high": gain + 0.05}
