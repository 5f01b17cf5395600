"""Section ``stopping`` on a measurement written by hand, whose arms have exact speeds."""

import pytest

from pipelines.reporting.inputs import Inputs
from pipelines.reporting.stopping import paying, section
from tests.pipelines.hand_made_measured import MAIN_SPEED, SPEED, decodes, write_measured, write_records

EXACT = SPEED | {"entropy": 158, "early_stop-1": 176}
GAIN, HERE, OVER_FORK = "gain over best static chain", "gain over fastest chain here", "gain over best static fork"


def inputs_of(folder, speed=EXACT, records=True, bypassed=()):
    rows = [row | {"bypassed": 30} if row["arm"] in bypassed else row for row in decodes(speed, noise=0.0)]
    write_measured(folder / "measured" / "toy-1c", rows)
    if records:
        write_records(folder / "fit")
    return Inputs(folder, "toy-1c")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return section(inputs_of(tmp_path_factory.mktemp("stopping")))


def rows_of(made, table=0):
    return {row["rule"]: row for row in made.record()["tables"][table]["rows"]}


def paid(made):
    """Gains over the best static chain of rules that surely beat it and the fastest one, by rule and setting."""
    rules = {"confidence ε=0.4", "early_stop-1", "entropy (AdaEDL)", "roc"}
    known, sure = paying(made.tables[:2], rules)
    assert {name.partition(" at ")[0] for name in known} <= rules
    return {name: gain["value"] for name, gain in sure.items()}


def test_rules_against_the_best_static_chain(made):
    rows = rows_of(made)
    assert list(rows) == [
        *("chain, γ=3", "confidence ε=0.4", "early_stop-1", "entropy (AdaEDL)", "roc"),
        *("fork-4.2 early_stop-1", "fork-4.2"),
    ]
    gains = [row[GAIN] and row[GAIN]["value"] for row in rows.values()]
    assert gains[0] is None, "of the chain itself"
    assert gains[1:] == pytest.approx([speed / 160 - 1 for speed in (150, 176, 158, 152, 132, 120)])
    assert rows["roc"][OVER_FORK] is None and rows["fork-4.2"][OVER_FORK] is None
    assert rows["fork-4.2 early_stop-1"][OVER_FORK]["value"] == pytest.approx(0.1)
    assert rows["roc"]["block efficiency"]["value"] == pytest.approx(59 / 30)
    assert [rows["roc"][name] for name in ("drafted per round", "deciding")] == pytest.approx([2, 0.2])


def test_hindsight_is_the_chain_that_was_fastest_here(tmp_path):
    """A rule that beats the chosen chain but not that one does not pay."""
    made = section(inputs_of(tmp_path, EXACT | {"chain-1": 200}))
    row = rows_of(made)["early_stop-1"]
    assert row[GAIN]["value"] == pytest.approx(0.1) and row[HERE]["value"] == pytest.approx(176 / 200 - 1)
    assert paid(made) == {}


def test_a_rule_pays_that_surely_beats_both_chains(made):
    assert paid(made) == pytest.approx({"early_stop-1 at T=0": 0.1, "early_stop-1 at T=1": 0.1})
    assert len(made.finding.split()) <= 30


def test_a_rule_that_was_bypassed_is_no_row(tmp_path):
    made = section(inputs_of(tmp_path, bypassed=("early_stop-1",)))
    assert "early_stop-1" not in rows_of(made) and "entropy (AdaEDL)" in rows_of(made)
    assert paid(made) == {}


def test_what_models_know_and_replay_promises(made):
    first, second = made.record()["tables"][-1]["rows"]
    assert (first["model"], first["AUROC"], first["ECE"], first["sampling"]) == ("early_stop-1", 0.8, 0.03, "T=1")
    replayed = [first[name] for name in ("forced", "at no cost", "paper's")]
    assert replayed == [0.01, 0.07, -0.05]
    assert (
        first["its rule"] == pytest.approx({"value": 0.06, "low": 0.04, "high": 0.08})
        and first["oracle"]["value"] == 0.3
    )
    assert second["model"] == "logistic"
    (axes,) = made.pictures[1].figure.axes
    assert [line.get_label() for line in axes.lines] == ["early_stop-1", "logistic", "observed"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.6, 0.4], [0.6, 0.4], [0.62, 0.41]], "observed last"


def test_without_rules_or_models(tmp_path):
    speed = {arm: rate for arm, rate in MAIN_SPEED.items() if arm != "entropy"}
    assert section(inputs_of(tmp_path / "none", speed)) is None
    made = section(inputs_of(tmp_path / "models", records=False))
    assert len(made.tables) == 2 and [picture.name for picture in made.pictures] == ["stops"]
