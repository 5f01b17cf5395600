"""The report of the verifier comparison against rows written by hand."""

import json

import pytest

from pipelines.measuring.verifier_names import ACCEPTANCE, BLOCK_EFFICIENCY, CHOICES, DECODING, ROOTS, TOKENS_PER_SECOND
from pipelines.measuring.verifier_table import write_tables
from pipelines.outputs import write_json
from pipelines.reporting.verifier_folder import read_comparison
from pipelines.reporting.verifier_report import VerifierReport, sentence
from pipelines.studies.verifiers_report import write_report

# The report on rows written by hand: two settings, one of them timed; two slices with a document each.

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


def write_hand_made(folder) -> None:
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
    origin = {"device": {"slug": "toy"}, "dtype": "float32", "threads": 1, "commit": None, "date": "2026-01-01"}
    write_json(folder / "provenance.json", origin)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    write_hand_made(folder)
    return read_comparison(folder)


def test_numbers_of_the_report_by_hand(comparison):
    report = VerifierReport(comparison, replicates=200, seed=0)
    quality, timing = report.quality(), report.timing()
    rules = {row["name"]: row for row in quality["settings"][0]["rules"]}
    assert list(rules) == ["tokenwise", "block", "traversal"]
    assert {name: row["expected"]["value"] for name, row in rules.items()} == {
        "tokenwise": 2.5,
        "block": 3.0,
        "traversal": pytest.approx(3.2),
    }
    assert rules["block"]["expected"]["low"] == 2.5 and rules["block"]["expected"]["high"] == 3.5
    assert rules["block"]["decoded"]["value"] == pytest.approx(2 * 59 / 50)
    assert rules["block"]["drafters"] == ["chain-2"]
    assert quality["settings"][1]["rules"][0]["decoded"] is None  # T=2 was not timed
    assert quality["roots"] == 8 and quality["documents"] == 2
    speeds = {row["name"]: row for row in timing["settings"][0]["rules"]}
    assert speeds["block"]["tokens_per_second"]["value"] == pytest.approx(120)
    assert speeds["block"]["speedup"]["value"] == pytest.approx(2.4)
    assert speeds["block"]["verify_share"]["value"] == pytest.approx(0.2)
    rate = next(row for row in quality["acceptance"] if (row["solver"], row["draws"], row["depth"]) == ("nss", 2, 1))
    assert rate["rate"]["value"] == pytest.approx((0.5 + 2 * 0.8) / 3)
    by_slice = report.block_efficiencies(["T=1"], "code")
    assert [row["expected"]["value"] for row in by_slice] == [2.0, 2.5, 3.0]


def test_a_winner_is_told_apart_only_if_the_interval_of_the_ratio_excludes_one(comparison):
    report = VerifierReport(comparison, replicates=200, seed=0)
    winner = report.winner(BLOCK_EFFICIENCY, ["T=1", "T=2"])
    assert winner["name"] == "traversal"  # 3.2 against block's 3.0, but worse than block in document b
    assert winner["tied"] == ["block"]
    fastest = report.winner(TOKENS_PER_SECOND, ["T=1"])
    assert (fastest["name"], fastest["tied"]) == ("block", [])
    text = sentence(report.quality(), report.timing())
    assert (
        "traversal is first (3.20 tokens per target pass, 3.00–3.40), but the data do not tell it apart from block"
        in text
    )
    assert "by speed block is first (120 tokens/s, 120–120), told apart from every other rule" in text


def test_study_report_writes_every_table(comparison, tmp_path):
    write_report(tmp_path, "p", VerifierReport(comparison, replicates=50, seed=0))
    text = (tmp_path / "verifiers.md").read_text()
    assert "| traversal | 3.00 (3.00–3.00) | 3.40 (3.40–3.40) | 3.20 (3.00–3.40) |" in text
    assert "| chain-4 |" in text and "‖p − q‖₁" in text
    assert (tmp_path / "verifiers_acceptance.png").is_file()
    assert json.loads((tmp_path / "verifiers.json").read_text())["quality"]["winner"]["name"] == "traversal"


def test_absent_comparison_is_none(tmp_path):
    assert read_comparison(tmp_path) is None
