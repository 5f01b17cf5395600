"""Section ``selection``, on numbers that were written by hand."""

import pandas as pd
import pytest

from pipelines.measuring.tables import FIRST_ROUNDS, PRICES
from pipelines.outputs import read_json
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.selection import labels_right, price_errors, section, to_win
from tests.pipelines.hand_made_selection import selection_decodes, selection_rounds, write_selection
from tests.pipelines.hand_made_timed import write_timed


def inputs(folder, rows, rounds=()):
    write_selection(folder / "selection/toy", folder / "fit")
    write_timed(folder / "measured/toy", rows, list(rounds))
    return Inputs(folder, "toy")


def cells(made):
    return {row["rule"]: row for row in made.record()["tables"][0]["rows"]}


@pytest.fixture
def made(tmp_path):
    return inputs(tmp_path, selection_decodes(), selection_rounds())


def test_speeds_and_gains_by_hand(made):
    rows = cells(section(made))
    assert list(rows) == ["specinfer", "traversal", "specinfer over traversal"]
    gains = {rule: row["gain, on the clock"]["value"] for rule, row in rows.items()}
    expected = {"specinfer": 0.1, "traversal": 104 / 105 - 1, "specinfer over traversal": 110 / 105 - 1}
    assert gains == pytest.approx(expected)
    assert rows["specinfer"]["its speed-up over plain"]["value"] == pytest.approx(2.0)
    assert rows["specinfer"]["deciding, % of time"] == pytest.approx(2.0)
    assert section(made).tables[0].marked == {"specinfer"}


def test_exact_labels_are_the_records(made):
    rows = cells(section(made))
    exact, least, most = "gain, exact labels", "oracle's, at least", "at most"
    assert rows["specinfer"][exact] == pytest.approx({"value": 0.05, "low": 0.03, "high": 0.07})
    assert [rows[rule][least]["value"] for rule in ("specinfer", "traversal")] == pytest.approx([0.1, -0.08])
    assert [rows[rule][most]["value"] for rule in ("specinfer", "traversal")] == pytest.approx([0.2, 0.02])
    assert rows["specinfer"]["share closed"]["value"] == pytest.approx(0.5)
    assert rows["traversal"]["share closed"] is rows["specinfer over traversal"][exact] is None


def test_what_there_is_to_win(made):
    records = {record["rule"]: record for record in made.fitted("tree").values()}
    assert to_win(records) == (["specinfer"], ["specinfer"], ["traversal"]), "on the same draws: 2 %"


def test_a_selector_is_compared_with_its_static_tree_on_the_blocks_that_they_share(tmp_path):
    """Prompt b takes ten times as long, and the selector decoded that one alone: by sums it would seem to lose."""
    rows = [row | {"seconds": 10 * row["seconds"]} if row["prompt"] == "b" else row for row in selection_decodes()]
    made = inputs(tmp_path, [row for row in rows if (row["arm"], row["prompt"]) != ("delayed_tree-specinfer", "a")])
    assert cells(section(made))["specinfer"]["gain, on the clock"]["value"] == pytest.approx(0.1)


def test_what_no_block_compares_is_undefined(tmp_path):
    apart = {("delayed_tree-specinfer", "a"), ("static tree specinfer", "b")}
    rows = [row for row in selection_decodes() if (row["arm"], row["prompt"]) not in apart]
    made = section(inputs(tmp_path, rows, selection_rounds()))
    assert cells(made)["specinfer"]["gain, on the clock"] is None
    assert made.tables[0].marked == set()


def test_steps_are_compared_with_their_price(made):
    """The last round, which was cut short, and the prefill are no steps of the tree."""
    records = {record["rule"]: record for record in made.fitted("tree").values()}
    priced = read_json(made.of("selection") / PRICES)
    assert price_errors(made.measured.rounds, records, priced) == pytest.approx([0.1, 22 / 22.5 - 1])
    assert price_errors(made.measured.rounds.iloc[:0], records, priced) == []


def test_labels_are_compared_with_real_rounds(made):
    rounds = pd.read_parquet(made.of("selection") / FIRST_ROUNDS)
    assert labels_right(rounds) == [True, False]


def test_every_rule_is_drawn_and_its_choices_are_listed(made):
    (picture,) = section(made).pictures
    assert [label.get_text() for label in picture.figure.axes[0].get_yticklabels()] == ["specinfer", "traversal"]
    choices = section(made).record()["tables"][1]["rows"]
    assert [row["rule, slice"] for row in choices] == [
        *("specinfer, code", "specinfer, prose", "traversal, code", "traversal, prose")
    ]
    assert [row["trees"] for row in choices] == [*("chain-2 75 %, delayed-2.0.1 25 %", "chain-2 100 %") * 2]


def test_nothing_checked_is_no_section(tmp_path):
    write_timed(tmp_path / "measured/toy", selection_decodes())
    assert section(Inputs(tmp_path, "toy")) is None
