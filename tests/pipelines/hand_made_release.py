"""Tuning and trials written by hand: one sampling setting on the prompts of the benchmark, arms of known speed."""

from pipelines.measuring.decoding_table import DECODES, write_table
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.names import CHOICES, DECODING
from pipelines.outputs import write_json
from pipelines.promotion.bounds import Bounds
from pipelines.promotion.gate import judge, judged
from pipelines.promotion.names import VERDICT
from tests.pipelines.test_gate import GOOD, change, gains

RATES = {PLAIN: 50.0, "chain-2": 100.0, "ema": 110.0}


def write_release(tuning, trials, device, prompts) -> None:
    """The stages' outputs; ``prompts`` are (prompt, document) pairs. Bundle ``auto`` passes, ``hrad`` is refused, ``length`` is
    open."""
    rows = []
    for prompt, document in prompts:
        for name, rate in RATES.items():
            where = {"setting": "T=0", "prompt": prompt, "document": document, "slice": "code", "split": "test"}
            rows.append({**where, "repeat": 0, "drafter": name, "verifier": name, "tokens": 60, "seconds": 60 / rate})
    write_table(tuning / device / DECODING, rows, DECODES)
    candidates = [
        {"name": name, "served": {}, "predicted": 2 * rate, "static": name == "chain-2"} for name, rate in RATES.items()
    ]
    turns = [{"prompts": 3, "ranking": ["ema", "chain-2", PLAIN]}]
    choice = {"setting": "T=0", "winner": "ema", "static": "chain-2", "candidates": candidates, "turns": turns}
    write_json(tuning / device / CHOICES, [choice])
    for name, evidence in (("auto", GOOD), ("hrad", change(**gains(0.0))), ("length", change(**gains(0.03, 0.02)))):
        record = judged(evidence, judge(evidence, Bounds()), Bounds())
        write_json(trials / name / device / VERDICT, record)
