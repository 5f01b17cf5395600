"""Section ``verifiers`` on rows written by hand."""

import pytest

from pipelines.reporting.comparison import ALL, By
from pipelines.reporting.inputs import Inputs, read_measured
from pipelines.reporting.verifiers import acceptance, of_rules, read_rules, section
from tests.pipelines.hand_made_comparison import SPEEDS, comparison_decodes, write_comparison
from tests.pipelines.hand_made_timed import choice, decode, write_timed

TOKENWISE, BLOCK, TRAVERSAL = "chain tokenwise", "chain", "iid traversal"


def read(folder, rows, choices=SPEEDS):
    write_comparison(folder / "verifiers/toy")
    write_timed(folder / "measured/toy", rows, choices=choices)
    return read_rules(folder / "verifiers/toy", read_measured(folder / "measured/toy"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rules")


@pytest.fixture(scope="module")
def rules(folder):
    return read(folder, comparison_decodes())


def cells(made, place=0):
    return {row["rule"]: row for row in made.record()["tables"][place]["rows"]}


def test_cells_by_hand(rules):
    rows = cells(of_rules(rules))
    exact = {name: row["block efficiency, exact"]["value"] for name, row in rows.items()}
    assert exact == pytest.approx({"tokenwise": 2.5, "block": 3.0, "traversal": 3.2})
    assert [row["shapes"] for row in rows.values()] == ["chain-2", "chain-2", "iid-2x2"]
    assert rows["block"]["decoded"]["value"] == pytest.approx(2 * 59 / 50)
    assert rows["block"]["speed-up over plain"]["value"] == pytest.approx(2.4)
    assert rows["block"]["time verifying"]["value"] == pytest.approx(0.2)
    reach = 12.706 * 0.5  # of two documents, 2.5 and 3.5: t of one degree of freedom
    assert rows["block"]["block efficiency, exact"]["high"] == pytest.approx(3 + reach, rel=1e-4)


def test_expectations_by_slice_and_acceptance_by_depth(rules):
    by = By("T=1", slice="code")
    assert [rules.expected(family, by)["value"] for family in rules.names] == [2.0, 2.5, 3.0]
    fixed, as_drafted, apart = acceptance(rules)
    assert [table.columns for table in (fixed, as_drafted)] == [["depth of the node", "nss", "specinfer"]] * 2
    assert [row["depth of the node"] for row in fixed.rows] == [0, 1]
    assert fixed.rows[1]["nss"]["value"] == pytest.approx((0.5 + 2 * 0.8) / 3)
    assert apart.rows[1]["‖p − q‖₁"]["value"] == pytest.approx(1.0)


def test_rules_tie_unless_the_interval_of_their_ratio_excludes_one(rules):
    efficient, fast = rules.most_efficient(), rules.fastest()
    assert (efficient.name, efficient.tied, efficient.worse) == ("traversal", ["tokenwise", "block"], [])
    assert (fast.name, fast.tied, fast.worse) == ("block", [], ["tokenwise", "traversal"])
    worse = {name: row["surely below the leader in"] for name, row in cells(of_rules(rules)).items()}
    assert worse == {"tokenwise": "speed", "block": None, "traversal": "speed"}
    assert of_rules(rules).tables[0].marked == {"block", "traversal"}


def test_arms_of_the_measurement_are_shapes_and_rules(rules):
    arms = {"autoregressive", "chain-2", "chain-4", "chain-2 tokenwise", "chain-4 tokenwise", "iid-2x2 traversal"}
    assert set(rules.timed.families) == arms
    assert set(rules.exact.families) == arms - {"autoregressive"}


def test_every_rule_stands_for_its_own_fastest_shape(tmp_path):
    speeds = [
        choice("chain", {"chain-2": 1.0, "chain-4": 2.0, "chain-6": 3.0}),
        choice("chain tokenwise", {"chain-2 tokenwise": 2.0, "chain-4 tokenwise": 1.0}),
        choice("confidence", {"confidence-0.1": 9.0}),
    ]
    rules = read(tmp_path, comparison_decodes(), speeds)
    assert rules.timed.choices("T=1") == {
        BLOCK: "chain-4",  # chain-6 was faster, but its expectation is not known
        TOKENWISE: "chain-2 tokenwise",
        TRAVERSAL: "iid-2x2 traversal",  # one shape, nothing to choose on the clock
    }
    assert rules.exact.choices("T=1")[BLOCK] == "chain-2"
    assert cells(of_rules(rules))["block"]["shapes"] == "chain-2, chain-4"


def test_rules_are_compared_on_the_blocks_that_they_share(tmp_path):
    """Prompt b takes ten times as long; block decoded both prompts, tokenwise the slow one, traversal the fast one."""
    slow = [row | {"seconds": 10 * row["seconds"]} if row["prompt"] == "b" else row for row in comparison_decodes()]
    missing = {("chain-2 tokenwise", "a"), ("iid-2x2 traversal", "b")}
    rules = read(tmp_path, [row for row in slow if (row["arm"], row["prompt"]) not in missing])
    timed = rules.timed
    speeds = [timed.speedup(family)["value"] for family in rules.names]
    assert speeds == pytest.approx([2.0, 2.4, 2.2]), "without pairing, whoever decoded the fast prompt wins"
    assert timed.pace(TRAVERSAL, ALL)["value"] == pytest.approx(2.2 * 120 / (1.2 + 12))
    assert timed.speedup(BLOCK, TOKENWISE)["value"] == pytest.approx(1.2)
    assert timed.speedup(TOKENWISE, TRAVERSAL)["value"] is None, "no block is shared"
    assert rules.fastest().name == "block"


def test_a_rule_that_was_not_timed_has_no_speed(tmp_path):
    rules = read(tmp_path, [row for row in comparison_decodes() if row["arm"] != "iid-2x2 traversal"])
    made = cells(of_rules(rules))["traversal"]
    assert made["speed-up over plain"] is made["decoded"] is made["time verifying"] is None
    assert rules.fastest().worse == ["tokenwise"], "nor is it told apart by speed"


def test_an_absent_comparison_is_none_and_an_untimed_one_is_refused(tmp_path):
    write_timed(tmp_path / "measured/toy", [decode("chain-6", "chain", "block", "a", 1.0)])
    assert section(Inputs(tmp_path, "toy")) is None
    write_comparison(tmp_path / "verifiers/toy")
    with pytest.raises(ValueError, match="no arm of .* was timed"):
        section(Inputs(tmp_path, "toy"))
