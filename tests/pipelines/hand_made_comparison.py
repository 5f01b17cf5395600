"""A verifier comparison written by hand: two settings, one of them timed; two slices with a document each."""

from pipelines.measuring.names import CHOICES, PLAIN, PLAIN_FAMILY
from pipelines.measuring.tables import ACCEPTANCE, EXPECTATIONS, ROOTS, write_table
from pipelines.outputs import write_json
from tests.pipelines.hand_made_timed import choice, decode

EXPECTED = {  # (drafter, verifier) -> expectation in document a and in document b
    ("chain-2", "tokenwise"): (2.0, 3.0),
    ("chain-2", "block"): (2.5, 3.5),
    ("chain-4", "tokenwise"): (9.0, 9.0),  # better on test, but not the one that validation chose
    ("chain-4", "block"): (9.0, 9.0),
    ("iid-2x2", "traversal"): (3.0, 3.4),
}
RATE = {"tokenwise": 100.0, "block": 120.0, "traversal": 110.0}
RULES = {"tokenwise": "chain", "block": "chain", "traversal": "iid"}
SPEEDS = [  # on validation prompts; chain-6 is no shape of the comparison
    choice("chain", {"chain-2": 9.0, "chain-4": 8.0, "chain-6": 10.0}),
    choice("chain tokenwise", {"chain-2 tokenwise": 9.0, "chain-4 tokenwise": 8.0}),
]


def arm_of(drafter: str, verifier: str) -> str:
    return drafter if verifier == "block" else f"{drafter} {verifier}"


def comparison_decodes() -> list[dict]:
    """Of every shape and rule at T=1, of plain decoding, and of an arm that is no part of the comparison."""
    rows = []
    for index, prompt in enumerate(("a", "b")):
        rounds = 20 + 10 * index
        rows.append(decode(PLAIN, PLAIN_FAMILY, "", prompt, 60 / 50, rounds))
        rows.append(decode("chain-6", "chain", "block", prompt, 60 / 900, rounds))
        for drafter, verifier in EXPECTED:
            family = RULES[verifier] if verifier == "block" else f"{RULES[verifier]} {verifier}"
            rows.append(decode(arm_of(drafter, verifier), family, verifier, prompt, 60 / RATE[verifier], rounds))
    return rows


def write_comparison(folder) -> None:
    """The tables of a comparison, as the stage leaves them."""
    roots, acceptance = [], []
    for index, (prompt, slice_) in enumerate((("a", "code"), ("b", "prose"))):
        who = {"prompt": prompt, "document": f"d{prompt}", "slice": slice_}
        for setting in ("T=1", "T=2"):
            for root in range(2):
                for (drafter, verifier), values in EXPECTED.items():
                    arm = {"family": RULES[verifier], "drafter": drafter, "verifier": verifier}
                    row = {**who, **arm, "setting": setting, "root": root, "nodes": 2.0}
                    roots += [row | {"split": split, "expected": values[index]} for split in ("test", "validation")]
        for depth in range(2):
            for solver in ("nss", "specinfer"):
                for draws in (0, 2):
                    row = {**who, "setting": "T=1", "root": 0, "depth": depth, "paths": 1 + index, "solver": solver}
                    acceptance.append(row | {"draws": draws, "rate": 0.5 + 0.3 * index, "distance": 1.0})
    for name, rows in ((ROOTS, roots), (ACCEPTANCE, acceptance)):
        write_table(folder / name, rows, EXPECTATIONS[name])
    choices = [
        {"setting": setting, "family": family, "verifier": verifier}
        | {"drafter": "iid-2x2" if verifier == "traversal" else "chain-2"}
        for setting in ("T=1", "T=2")
        for verifier, family in RULES.items()
    ]
    write_json(folder / CHOICES, {"choices": choices, "capped": False})
    write_json(folder / "provenance.json", {})
