"""The report of the verifier comparison against rows written by hand."""

import json

import pytest

from pipelines.measuring.verifiers.names import BLOCK_EFFICIENCY, TOKENS_PER_SECOND
from pipelines.reporting.verifier_folder import read_comparison
from pipelines.reporting.verifier_report import VerifierReport, sentence
from pipelines.studies.verifiers_report import write_report
from tests.pipelines.hand_made_comparison import write_comparison


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    write_comparison(folder)
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
    assert "## The same by sampling setting, on iid-2x2" in text
    assert "| T=2 | – | – | 1.00 (1.00–1.00) |" in text
    assert "uncommitted" not in text
    assert "| chain-4 |" in text and "‖p − q‖₁" in text
    assert (tmp_path / "verifiers_acceptance.png").is_file()
    assert json.loads((tmp_path / "verifiers.json").read_text())["quality"]["winner"]["name"] == "traversal"


def test_absent_comparison_is_none(tmp_path):
    assert read_comparison(tmp_path) is None
