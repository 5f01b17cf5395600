"""Tuning and a trial written by hand: one sampling setting on the prompts of the benchmark, arms of known speed."""

from dataclasses import replace

from pipelines.measuring.decoding_table import DECODES, write_table
from pipelines.measuring.names import PLAIN
from pipelines.measuring.tuning.names import CHOICES, DECODING
from pipelines.outputs import write_json
from pipelines.promotion.gate import Bounds, judge, judged
from pipelines.promotion.names import VERDICT
from tests.pipelines.test_gate import GOOD

RATES = {PLAIN: 50.0, "chain-2": 100.0, "ema": 110.0}


def write_release(tuning, trials, device, prompts) -> None:
    """The stages' outputs; ``prompts`` are (prompt, document) pairs. Bundle ``auto`` passes and ``hrad`` does not."""
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
    static = {"chosen": {"T=0": "chain-4"}, "fastest": {"T=0": "chain-6"}, "hindsight": {"T=0": GOOD.hindsight}}
    good = replace(GOOD, slices={"T=0": GOOD.gain}, origin={"static": static})
    worse = replace(GOOD, gain={"value": 0.01, "low": -0.02, "high": 0.04})
    for name, evidence in (("auto", good), ("hrad", worse)):
        record = judged(evidence, judge(evidence, Bounds()), Bounds())
        write_json(trials / name / device / VERDICT, record)
