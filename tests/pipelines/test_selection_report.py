"""What the report says of selectors, on numbers that were written by hand."""

import pytest

from pipelines.reporting.selection_folder import read_selection
from pipelines.reporting.selection_plots import choices_by_slice, gains_by_rule
from pipelines.reporting.selection_report import SelectionReport, sentences
from tests.pipelines.hand_made_selection import write_selection


@pytest.fixture
def report(tmp_path):
    write_selection(tmp_path / "toy", tmp_path / "selectors")
    return SelectionReport(read_selection(tmp_path / "toy", tmp_path / "selectors"), replicates=50, seed=0)


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


def test_steps_are_compared_with_their_price(report):
    timing = report.timing()
    errors = {row["action"]: row["error"] for row in timing["actions"]}
    assert errors == pytest.approx({"chain-2": 0.1, "delayed-2.0.1": 0.0})
    assert timing["drift"] == pytest.approx(0.05)
    left = {row["action"]: row["beside_drift"] for row in timing["actions"]}
    assert left == pytest.approx({"chain-2": 1.1 / 1.05 - 1, "delayed-2.0.1": 1 / 1.05 - 1})


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
    text = " ".join(sentences(quality, timing))
    assert "surely beats the best static tree with specinfer; with traversal it does not" in text
    assert (
        "3 % or more with specinfer at least: the selector closes a quarter of that gap or more with specinfer" in text
    )
    assert "With traversal even a perfect choice would bring less than 3 %: there is nothing to win." in text
    assert "specinfer +10.0% (+10.0% to +10.0%), traversal -1.0%" in text
    assert "with specinfer, against traversal with its best static tree, on the clock: +4.8%" in text


def test_plots_draw_every_rule(report):
    quality, timing = report.quality(), report.timing()
    assert len(choices_by_slice(quality).axes) == 2
    labels = [label.get_text() for label in gains_by_rule(quality, timing).axes[0].get_yticklabels()]
    assert labels == ["specinfer", "traversal"]


def test_nothing_measured_is_no_report(tmp_path):
    assert read_selection(tmp_path / "toy", tmp_path / "selectors") is None
