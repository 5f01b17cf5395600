"""What the report says of selectors, on numbers that were written by hand."""

import pytest

from pipelines.reporting.inputs import read_fitted
from pipelines.reporting.measured_folder import read_measured
from pipelines.reporting.selection_folder import read_selection
from pipelines.reporting.selection_plots import choices_by_slice, gains_by_rule
from pipelines.reporting.selection_report import SelectionReport
from tests.pipelines.hand_made_selection import selection_decodes, selection_rounds, write_selection
from tests.pipelines.hand_made_timed import write_timed


def made(folder, rows, rounds):
    write_selection(folder / "toy", folder / "fit")
    write_timed(folder / "measured", rows, rounds)
    results = read_selection(folder / "toy", read_fitted(folder / "fit", "tree"), read_measured(folder / "measured"))
    return SelectionReport(results, replicates=50, seed=0)


@pytest.fixture
def report(tmp_path):
    return made(tmp_path, selection_decodes(), selection_rounds())


def test_speeds_and_gains_are_paired(report):
    specinfer, traversal = report.timing()["rules"]
    assert (specinfer["rule"], traversal["rule"]) == ("specinfer", "traversal")
    assert specinfer["gain"] == pytest.approx({"value": 0.1, "low": 0.1, "high": 0.1})
    assert specinfer["static"]["speedup"]["value"] == pytest.approx(2.0)
    assert traversal["gain"]["value"] == pytest.approx(104 / 105 - 1)
    assert specinfer["decision_share"]["value"] == pytest.approx(0.02)
    assert specinfer["hooks_share"]["value"] == 0.0 and specinfer["bypassed"] == 0.0
    against = report.timing()["against_traversal"]
    assert against["rule"] == "specinfer" and against["gain"]["value"] == pytest.approx(110 / 105 - 1)


def test_a_selector_is_compared_with_its_static_tree_on_the_blocks_that_they_share(tmp_path):
    """Prompt b takes ten times as long, and the selector decoded that one alone: by sums it would seem to lose."""
    rows = [row | {"seconds": 10 * row["seconds"]} if row["prompt"] == "b" else row for row in selection_decodes()]
    rows = [row for row in rows if (row["arm"], row["prompt"]) != ("delayed_tree-specinfer", "a")]
    specinfer = made(tmp_path, rows, []).timing()["rules"][0]
    assert specinfer["gain"]["value"] == pytest.approx(0.1)
    assert specinfer["selector"]["speedup"]["value"] == pytest.approx(2.2)
    assert specinfer["selector"]["tokens_per_second"]["value"] == pytest.approx(2.2 * 120 / (1.2 + 12))
    assert made(tmp_path, rows, []).timing()["actions"] == []


def test_what_no_block_compares_is_undefined(tmp_path):
    apart = {("delayed_tree-specinfer", "a"), ("static tree specinfer", "b")}
    rows = [row for row in selection_decodes() if (row["arm"], row["prompt"]) not in apart]
    report = made(tmp_path, rows, selection_rounds())
    quality, timing = report.quality(), report.timing()
    assert timing["rules"][0]["gain"]["value"] is None
    assert "specinfer –, traversal −1 %" in " ".join(report.sentences(quality, timing))
    assert gains_by_rule(quality, timing).axes


def test_steps_are_compared_with_their_price(report):
    """The last round, which was cut short, and the prefill are no steps of the action."""
    timing = report.timing()
    assert [(row["rule"], row["action"]) for row in timing["actions"]] == [
        ("specinfer", "chain-2"),
        ("traversal", "chain-2"),
    ]
    assert {row["rule"]: row["measured_ms"] for row in timing["actions"]} == pytest.approx(
        {"specinfer": 20.0, "traversal": 22.5}
    )
    errors = {row["rule"]: row["error"] for row in timing["actions"]}
    assert errors == pytest.approx({"specinfer": 0.1, "traversal": 22 / 22.5 - 1})
    drift = (0.1 + 22 / 22.5 - 1) / 2
    assert timing["drift"] == pytest.approx(drift)
    left = {row["rule"]: row["beside_drift"] for row in timing["actions"]}
    assert left == pytest.approx({rule: (1 + error) / (1 + drift) - 1 for rule, error in errors.items()})


def test_labels_are_compared_with_real_rounds(report):
    agreement = {row["rule"]: row for row in report.quality()["agreement"]}
    assert agreement["specinfer"]["agrees"] and not agreement["traversal"]["agrees"]
    assert agreement["traversal"]["difference"]["value"] == pytest.approx(-1.0)


def test_it_says_where_there_is_nothing_to_win(report):
    quality, timing = report.quality(), report.timing()
    assert [row["worth_winning"] for row in quality["rules"]] == [True, False]
    assert [row["nothing_to_win"] for row in quality["rules"]] == [False, True], (
        "chosen and scored on the same draws: 2 %"
    )
    text = " ".join(report.sentences(quality, timing))
    assert "surely beats the best static tree with specinfer; with traversal it does not" in text
    assert (
        "3 % or more with specinfer at least: the selector closes a quarter of that gap or more with specinfer" in text
    )
    assert "With traversal even a perfect choice would bring less than 3 %: there is nothing to win." in text
    assert "specinfer +10 % (+10…+10), traversal −1 %" in text
    assert "with specinfer, against traversal with its best static tree, on the clock: +5 %" in text


def test_plots_draw_every_rule(report):
    quality, timing = report.quality(), report.timing()
    assert len(choices_by_slice(quality).axes) == 2
    labels = [label.get_text() for label in gains_by_rule(quality, timing).axes[0].get_yticklabels()]
    assert labels == ["specinfer", "traversal"]


def test_nothing_measured_is_no_report(tmp_path):
    write_timed(tmp_path / "measured", selection_decodes())
    measured = read_measured(tmp_path / "measured")
    assert read_selection(tmp_path / "toy", {}, measured) is None
