"""A verifier comparison written by hand: two settings, one of them timed; two slices with a document each."""

from pipelines.measuring.verifiers.names import (
    ACCEPTANCE,
    BLOCK_EFFICIENCY,
    CHOICES,
    DECODING,
    ROOTS,
    TOKENS_PER_SECOND,
)
from pipelines.measuring.verifiers.table import write_tables
from pipelines.outputs import write_json

EXPECTED = {  # (drafter, verifier) -> expectation in document a and in document b
    ("chain-2", "tokenwise"): (2.0, 3.0),
    ("chain-2", "block"): (2.5, 3.5),
    ("chain-4", "tokenwise"): (9.0, 9.0),  # better on test, but not the one that validation chose
    ("chain-4", "block"): (9.0, 9.0),
    ("iid-2x2", "traversal"): (3.0, 3.4),
}
RATE = {"tokenwise": 100.0, "block": 120.0, "traversal": 110.0, "autoregressive": 50.0}


def family(drafter):
    return drafter.split("-")[0] if "-" in drafter else "autoregressive"


def write_comparison(folder) -> None:
    """The tables of a comparison, as the stage leaves them."""
    roots, decoding, acceptance = [], [], []
    for index, (prompt, slice_) in enumerate((("a", "code"), ("b", "prose"))):
        who = {"prompt": prompt, "document": f"d{prompt}", "slice": slice_}
        for setting in ("T=1", "T=2"):
            for root in range(2):
                for (drafter, verifier), values in EXPECTED.items():
                    arm = {"family": family(drafter), "drafter": drafter, "verifier": verifier}
                    row = {**who, **arm, "setting": setting, "root": root, "nodes": 2.0}
                    roots += [row | {"split": split, "expected": values[index]} for split in ("test", "validation")]
        for drafter, verifier in (*EXPECTED, ("autoregressive", "autoregressive")):
            arm = {
                "family": family(drafter),
                "drafter": drafter,
                "verifier": verifier,
                "split": "test",
                "setting": "T=1",
            }
            seconds = 60 / RATE[verifier]
            phases = {f"seconds_{name}": seconds / 5 for name in ("draft", "target", "verify", "controller", "rest")}
            counts = {"tokens": 60, "seconds": seconds, "emitted": 59, "rounds": 20 + 10 * index}
            decoding.append({**who, **arm, **phases, **counts})
        for depth in range(2):
            for solver in ("nss", "specinfer"):
                for draws in (0, 2):
                    row = {**who, "setting": "T=1", "root": 0, "depth": depth, "paths": 1 + index, "solver": solver}
                    acceptance.append(row | {"draws": draws, "rate": 0.5 + 0.3 * index, "distance": 1.0})
    write_tables(folder, {ROOTS: roots, DECODING: decoding, ACCEPTANCE: acceptance})
    choices = [
        {"measure": measure, "setting": setting, "family": "iid" if verifier == "traversal" else "chain"}
        | {"verifier": verifier, "drafter": "iid-2x2" if verifier == "traversal" else "chain-2"}
        for measure in (BLOCK_EFFICIENCY, TOKENS_PER_SECOND)
        for setting in ("T=1", "T=2")
        for verifier in ("tokenwise", "block", "traversal")
    ]
    write_json(folder / CHOICES, {"choices": choices, "capped": False})
    origin = {
        "device": {"slug": "toy"},
        "threads": 1,
        "models": {"target": {"dtype": "float32", "forward": "compact"}},
        "commit": None,
        "date": "2026-01-01",
    }
    write_json(folder / "provenance.json", origin)
