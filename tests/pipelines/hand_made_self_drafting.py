"""A measurement of methods without a draft model written by hand: one sampling setting, two documents."""

from pipelines.measuring.decoding_table import DECODES, write_table
from pipelines.measuring.names import HF_PLAIN, PLAIN, PROVENANCE
from pipelines.measuring.self_drafting.names import CALIBRATED, CHAIN, DECODING, GIVEN, HUGGING_FACE, PROMPT_LOOKUP
from pipelines.outputs import write_json

RATES = {
    PLAIN: (PLAIN, 50.0),
    "chain-2": (CHAIN, 90.0),
    "chain-4": (CHAIN, 100.0),
    "progressive_tree": (CALIBRATED, 75.0),
    "lookahead": (CALIBRATED, 60.0),
    "self_draft": (CALIBRATED, 40.0),
    "progressive_tree-paper": (GIVEN, 70.0),
    HF_PLAIN: (HUGGING_FACE, 40.0),
    PROMPT_LOOKUP: (HUGGING_FACE, 50.0),
}


def record(method):
    """What the guesser stage says of a method."""
    worth = {"value": 1.4, "low": 1.3, "high": 1.5}
    counts = {"decoding_efficiency": 1.9, "hit_rate": 0.5, "accept_length": 2.8, "guessed": 5.0, "candidates": 3.0}
    way = {"method": method}
    row = {"way": way, "setting": "T=1", "speedup": worth, "tokens_per_second": 70.0, **counts}
    return {"method": method, "chosen": way, "rows": [row]}


def write_self_drafting(folder, records) -> None:
    """The stages' outputs: a table in ``folder``, one record per method in ``records``."""
    rows = []
    for split in ("validation", "test"):
        for prompt in ("a", "b"):
            who = {"setting": "T=1", "prompt": prompt, "document": f"d{prompt}", "slice": "code", "prompt_tokens": 10}
            for order, (name, (family, rate)) in enumerate(RATES.items()):
                seconds = 60 / rate
                arm = {
                    "family": family,
                    "drafter": name,
                    "verifier": "match",
                    "split": split,
                    "order": order,
                    "repeat": 0,
                }
                counts = {"tokens": 60, "seconds": seconds}
                if family != HUGGING_FACE:
                    counts |= {"emitted": 59, "rounds": 20, "tried": 10, "drafted": 80, "guessed": 100, "levels": 60}
                    counts |= {"accepted": 39, "rolled_back": 21, "trimmed": 0, "segments": 20, "bypassed": 0}
                    counts |= {f"seconds_{phase}": 0.05 * seconds for phase in ("draft", "verify", "wait", "rest")}
                    counts |= {"seconds_target": 0.8 * seconds, "seconds_rounds": seconds, "seconds_controller": 0.0}
                rows.append({**who, **arm, **counts})
    write_table(folder / DECODING, rows, DECODES)
    write_json(folder / PROVENANCE, {"capped": False, "parameters": {}})
    for method in ("progressive_tree", "lookahead", "self_draft"):
        write_json(records / f"{method}.json", record(method))
