"""The report of the verifier comparison against rows written by hand."""

import json

import pytest

from pipelines.measuring.verifiers.names import BLOCK_EFFICIENCY, TOKENS_PER_SECOND
from pipelines.reporting.measured_folder import read_measured
from pipelines.reporting.report_page import _verifier_tables
from pipelines.reporting.verifier_folder import read_comparison
from pipelines.reporting.verifier_report import VerifierReport
from pipelines.studies.verifiers_report import write_report
from tests.pipelines.hand_made_comparison import EXPECTED, SPEEDS, comparison_decodes, write_comparison
from tests.pipelines.hand_made_timed import choice, decode, write_timed

TIMED = {rule: (shape, rule) for shape, rule in EXPECTED if shape != "chain-4"}


def read(folder, rows, choices=SPEEDS):
    write_comparison(folder / "verifiers")
    write_timed(folder / "measured", rows, choices=choices)
    return read_comparison(folder / "verifiers", read_measured(folder / "measured"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return read(tmp_path_factory.mktemp("comparison"), comparison_decodes())


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
    assert timing["prompts"] == 2
    rate = next(row for row in quality["acceptance"] if (row["solver"], row["draws"], row["depth"]) == ("nss", 2, 1))
    assert rate["rate"]["value"] == pytest.approx((0.5 + 2 * 0.8) / 3)
    by_slice = report.block_efficiencies(["T=1"], "code")
    assert [row["expected"]["value"] for row in by_slice] == [2.0, 2.5, 3.0]


def test_arms_of_the_measurement_are_shapes_and_rules(comparison):
    arms = set(comparison.decoding[["family", "drafter", "verifier"]].itertuples(index=False, name=None))
    assert arms == {
        ("chain", "chain-2", "block"),
        ("chain", "chain-4", "block"),
        ("chain", "chain-2", "tokenwise"),
        ("chain", "chain-4", "tokenwise"),
        ("iid", "iid-2x2", "traversal"),
        ("plain", "autoregressive", "autoregressive"),
    }


def test_every_rule_stands_for_its_own_fastest_shape(tmp_path):
    speeds = [
        choice("chain", {"chain-2": 1.0, "chain-4": 2.0, "chain-6": 3.0}),
        choice("chain tokenwise", {"chain-2 tokenwise": 2.0, "chain-4 tokenwise": 1.0}),
        choice("confidence", {"confidence-0.1": 9.0}),
    ]
    comparison = read(tmp_path, comparison_decodes(), speeds)
    chosen = {
        rule: comparison.chosen(TOKENS_PER_SECOND, "T=1", rule)
        for rule in (("chain", "block"), ("chain", "tokenwise"), ("iid", "traversal"))
    }
    assert chosen == {
        ("chain", "block"): "chain-4",  # chain-6 was faster, but its expectation is not known
        ("chain", "tokenwise"): "chain-2",
        ("iid", "traversal"): "iid-2x2",  # one shape, nothing to choose on the clock
    }
    assert comparison.chosen(BLOCK_EFFICIENCY, "T=1", ("chain", "block")) == "chain-2"


def test_rules_are_compared_on_the_blocks_that_they_share(tmp_path):
    """Prompt b takes ten times as long; block decoded both prompts, tokenwise the slow one, traversal the fast one."""
    slow = [row | {"seconds": 10 * row["seconds"]} if row["prompt"] == "b" else row for row in comparison_decodes()]
    missing = {("chain-2 tokenwise", "a"), ("iid-2x2 traversal", "b")}
    comparison = read(tmp_path, [row for row in slow if (row["arm"], row["prompt"]) not in missing])
    report = VerifierReport(comparison, replicates=50, seed=0)
    speeds = {row["name"]: row for row in report.speeds(["T=1"])}
    assert {name: row["speedup"]["value"] for name, row in speeds.items()} == pytest.approx(
        {"tokenwise": 2.0, "block": 2.4, "traversal": 2.2}
    )
    pace = 120 / (1.2 + 12)  # of plain decoding on both prompts
    sums = {name: report.rate(comparison.timed("T=1", *arm))["value"] for name, arm in TIMED.items()}
    assert {name: value / pace for name, value in sums.items()} == pytest.approx(
        {"tokenwise": 1.1, "block": 2.4, "traversal": 12.1}
    ), "without pairing, whoever decoded the fast prompt wins"
    assert speeds["traversal"]["tokens_per_second"]["value"] == pytest.approx(2.2 * pace)
    assert report.winner(TOKENS_PER_SECOND, ["T=1"])["name"] == "block"
    timed = {name: comparison.timed("T=1", *arm) for name, arm in TIMED.items()}
    assert report.ratio(timed["block"], timed["tokenwise"])["value"] == pytest.approx(1.2)
    assert report.ratio(timed["tokenwise"], timed["traversal"])["value"] is None, "no block is shared"


def test_a_winner_is_told_apart_only_if_the_interval_of_the_ratio_excludes_one(comparison):
    report = VerifierReport(comparison, replicates=200, seed=0)
    winner = report.winner(BLOCK_EFFICIENCY, ["T=1", "T=2"])
    assert winner["name"] == "traversal"  # 3.2 against block's 3.0, but worse than block in document b
    assert winner["tied"] == ["block"]
    fastest = report.winner(TOKENS_PER_SECOND, ["T=1"])
    assert (fastest["name"], fastest["tied"]) == ("block", [])
    (text,) = report.sentences(report.quality(), report.timing())
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


def test_a_rule_that_was_not_timed_has_no_speed_on_the_page(tmp_path):
    rows = [row for row in comparison_decodes() if row["arm"] != "iid-2x2 traversal"]
    report = VerifierReport(read(tmp_path, rows), replicates=50, seed=0)
    timed, untimed = _verifier_tables(report.timing(), report.quality())
    assert timed["timed"] and not untimed["timed"]
    speeds = {row["name"]: row["speed"] for row in timed["rules"]}
    assert speeds["traversal"] is None and speeds["block"]["speedup"]["value"] == pytest.approx(2.4)
    assert timed["rules"][2]["decoded"]["value"] is None
    write_report(tmp_path / "out", "p", report)


def test_absent_comparison_is_none_and_an_untimed_one_is_refused(tmp_path):
    write_timed(tmp_path / "measured", [decode("chain-6", "chain", "block", "a", 1.0)])
    measured = read_measured(tmp_path / "measured")
    assert read_comparison(tmp_path / "verifiers", measured) is None
    write_comparison(tmp_path / "verifiers")
    with pytest.raises(ValueError, match="no arm of .* was timed"):
        read_comparison(tmp_path / "verifiers", measured)
