"""Section ``branches`` on a measurement written by hand, whose arms have exact speeds."""

import pytest

from pipelines.reporting.branches import methods, section
from pipelines.reporting.inputs import Inputs
from tests.pipelines.hand_made_branches import BRANCH_SPEED, branch_rows, write_branches

GAIN = "gain over best static chain"


def inputs_of(folder, rows=None):
    write_branches(folder / "measured" / "toy-1c", rows)
    return Inputs(folder, "toy-1c")


def rows_of(made, table=0):
    return {row["method"]: row for row in made.record()["tables"][table]["rows"]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return inputs_of(tmp_path_factory.mktemp("branches"))


@pytest.fixture(scope="module")
def made(inputs):
    return section(inputs)


def test_every_method_stands_for_the_gamma_of_validation(inputs):
    """Not for pearl-2, the fastest on test prompts."""
    for setting in ("T=0", "T=1"):
        names = [arm.name for arm in methods(inputs.measured, setting)]
        assert names == ["pearl-4", "specbranch-8", "specbranch-no-hrad-4", "specbranch-no-branch-8"]


def test_arms_without_a_choice_between_them_are_refused(tmp_path):
    rows = branch_rows(BRANCH_SPEED | {"specbranch-no-hrad-6": 210})
    with pytest.raises(ValueError, match="specbranch-no-hrad at T=0"):
        section(inputs_of(tmp_path, rows))


def test_without_branch_parallel_arms_there_is_no_section(tmp_path):
    assert section(inputs_of(tmp_path, branch_rows({}))) is None


def test_speeds_are_paired_by_block(made):
    assert [table.caption for table in made.tables] == ["T=0", "T=1"]
    rows = rows_of(made)
    static, spec, pearl = (rows[name] for name in ("best static chain", "SpecBranch γ=8", "PEARL γ=4"))
    assert static["speed-up over plain"]["value"] == pytest.approx(1.6) and static[GAIN] is None
    assert spec["speed-up over plain"] == {end: pytest.approx(2.4) for end in ("value", "low", "high")}
    assert spec[GAIN]["value"] == pytest.approx(0.5)
    assert spec["gain over PEARL"]["value"] == pytest.approx(240 / 170 - 1), "both on the virtual clock"
    assert pearl["gain over PEARL"] is None


def test_a_sequential_arm_is_on_no_virtual_clock(made):
    row = rows_of(made)["SpecBranch without branches γ=8"]
    assert row[GAIN]["value"] == pytest.approx(150 / 160 - 1)
    assert row["gain over PEARL"] is None and row["target idle"] is None


def test_counts_of_rounds(made):
    rows = rows_of(made, table=1)
    found = {name: (row["target idle"], row["rollback rate"]) for name, row in rows.items()}
    assert found["PEARL γ=4"] == pytest.approx((0.4, 40 / 100))
    assert found["SpecBranch γ=8"] == pytest.approx((0.1, 16 / 80))
    assert found["SpecBranch without branches γ=8"] == (None, pytest.approx(20 / 60))
    assert rows["SpecBranch γ=8"]["block efficiency"]["value"] == pytest.approx(59 / 30)
    assert rows["SpecBranch γ=8"]["hits per branch point"] == pytest.approx(18 / 24)


def test_what_is_found_turns_with_the_measurement(tmp_path, made):
    """A gain counts where its interval lies above zero; the clock is named where it is a virtual one."""
    slow = section(inputs_of(tmp_path / "slow", branch_rows(dict.fromkeys(BRANCH_SPEED, 90))))
    assert made.finding.startswith("Surely over the best static chain on the virtual clock: SpecBranch γ=8 at T=")
    assert slow.finding.startswith("Surely over the best static chain on the virtual clock: none")
    real = [row | {"virtual": False} for row in branch_rows()]
    assert "virtual" not in section(inputs_of(tmp_path / "real", real)).finding
    assert len(made.notes) == 2 and len(section(inputs_of(tmp_path / "again", real)).notes) == 1


def test_the_picture_has_a_panel_for_each_setting(made):
    (gained,) = made.pictures
    assert [axes.get_title(loc="left") for axes in gained.figure.axes] == ["T=0", "T=1"]
