"""Section ``self_drafting`` on a measurement written by hand, whose arms have exact speeds."""

import pytest

from pipelines.measuring.names import METHODS
from pipelines.reporting.comparison import By
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.section import column
from pipelines.reporting.self_drafting import AL, DE, HR, PASSES, UPKEEP, lookup_gains, section
from tests.pipelines.hand_made_measured import ALONE_SPEED, MAIN_SPEED, SPEED, decodes, write_measured, write_records

SPEEDUP = "speed-up over plain"


def inputs_of(folder, speed=SPEED):
    write_measured(folder / "measured" / "toy-1c", decodes(speed, noise=0.0))
    write_records(folder / "fit")
    return Inputs(folder, "toy-1c")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return inputs_of(tmp_path_factory.mktemp("self_drafting"))


@pytest.fixture(scope="module")
def made(inputs):
    return section(inputs)


def rows_of(made, table=0):
    return {row["arm"]: row for row in made.record()["tables"][table]["rows"]}


def test_arms_against_plain_decoding_and_each_other(made):
    rows = rows_of(made)
    assert list(rows) == [
        "best static chain",
        *sorted(METHODS),
        "progressive_tree-paper",
        "HF prompt lookup",
        "HF generate",
    ]
    speeds = {name: row[SPEEDUP]["value"] for name, row in rows.items()}
    assert list(speeds.values()) == pytest.approx([1.6, 1.2, 1.5, 0.8, 1.4, 1.0, 0.8])
    tree = rows["progressive_tree"]
    over = [tree[f"over {name}"]["value"] for name in ("HF prompt lookup", "lookahead", "self_draft")]
    assert over == pytest.approx([1.5, 150 / 120, 150 / 80])
    assert rows["lookahead"]["over lookahead"] is None, "of itself"


def test_passes_by_hand(inputs, made):
    """30 passes, of which 15 had candidates, 60 of them; 30 were accepted. 90 guesses."""
    columns = inputs.measured.metrics(*PASSES, UPKEEP)
    counts = {name: value("lookahead", By("T=0")) for name, value in columns.items()}
    assert counts == pytest.approx(dict(zip((*PASSES, UPKEEP), (2, 0.5, 3, 3, 2, 0.2), strict=True)))
    assert counts[DE] == pytest.approx(counts[HR] * counts[AL] + 1 - counts[HR])
    row = rows_of(made, table=1)["lookahead"]
    shown = [
        row[name] for name in ("tokens per pass", "passes with candidates", "guesses and candidates per pass", UPKEEP)
    ]
    assert shown == pytest.approx([2, 0.5, 5, 0.2])
    assert rows_of(made)["best static chain"][UPKEEP] is None


def test_upkeep_is_checked_where_a_method_was_exported(made):
    assert len(made.checks) == 2 * len(METHODS)
    assert not any(check.row()["met"] for check in made.checks), "a fifth is more than a tenth"


def test_slices(made):
    rows = rows_of(made, table=-1)
    for setting in ("T=0", "T=1"):
        row = rows[f"progressive_tree at {setting}"]
        assert [row[name]["value"] for name in ("code", "prose")] == pytest.approx([1.5, 1.5])


def test_what_is_found(inputs, made):
    speeds = {name: speed["value"] for name, speed in column(made.tables[:2], SPEEDUP).items()}
    own = {name: speed for name, speed in speeds.items() if name.startswith((*METHODS,)) and "paper" not in name}
    fastest = {
        setting: max((name for name in own if name.endswith(setting)), key=own.get) for setting in ("T=0", "T=1")
    }
    assert fastest == {setting: f"progressive_tree at {setting}" for setting in ("T=0", "T=1")}
    assert [speeds[f"best static chain at {setting}"] for setting in fastest] == pytest.approx([1.6, 1.6])
    assert len(made.finding.split()) <= 30
    lookup = {setting: ratio["value"] for setting, ratio in lookup_gains(inputs.measured).items()}
    assert lookup == pytest.approx({"T=0": 1.25, "T=1": 1.25}), "prompt lookup over its own generate"


def test_without_such_methods_or_without_a_chain(tmp_path):
    assert section(inputs_of(tmp_path / "none", MAIN_SPEED)) is None
    alone = {"autoregressive": 100, **ALONE_SPEED}
    made = section(inputs_of(tmp_path / "alone", alone))
    assert "best static chain" not in rows_of(made) and rows_of(made)["lookahead"][SPEEDUP]["value"] == pytest.approx(
        1.2
    )
