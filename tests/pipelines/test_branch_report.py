"""The report's section on drafting while the target verifies, on a measurement written by hand."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from pipelines.measuring.names import TIMELINES, branch_arm
from pipelines.outputs import write_json
from pipelines.reporting.branch_folder import BranchArms, read_timelines, shown_name
from pipelines.reporting.branch_report import BranchReport
from pipelines.reporting.branch_sentences import sentences
from pipelines.reporting.measured_folder import read_measured
from tests.pipelines.hand_made_branches import BRANCH_SPEED, branch_rows, write_branches
from tests.pipelines.hand_made_measured import write_measured
from tests.pipelines.report_stage import stage

ARMS = [
    "pearl-4",
    "specbranch-8",
    "specbranch-no-hrad-4",
    "specbranch-no-branch-8",
    "pearl-4-wall",
    "specbranch-8-wall",
]


def read(folder):
    return BranchArms(read_measured(folder))


def built(folder, rows):
    write_branches(folder, rows)
    reporter = BranchReport(read(folder), replicates=200, seed=0)
    return reporter.timing(), reporter.quality()


def told(folder, speed):
    """The sentences at temperature 0 where arms have these speeds."""
    timing, _ = built(folder, branch_rows(BRANCH_SPEED | speed))
    return sentences(timing["settings"][0])


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return built(tmp_path_factory.mktemp("branches"), branch_rows())


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_branches(folder / "measured" / "toy-1c")
    write_json(folder / "device.json", {"slug": "toy-1c"})
    write_json(folder / "pair" / "pair.json", {"source": "builtin", "pair": "p"})
    (folder / "params.yaml").write_text(yaml.safe_dump({"pairs": {"p": {"report": {"bootstrap_replicates": 50}}}}))
    return folder


@pytest.fixture(scope="module")
def folder(inputs):
    return stage(inputs, inputs / "reports")


def test_each_way_of_drafting_stands_for_the_gamma_of_validation(records):
    timing, quality = records
    for row in timing["settings"]:
        assert list(row["arms"]) == ["autoregressive", "chain-3", *ARMS]  # not pearl-2, the fastest on test
    assert list(quality["settings"][1]["arms"]) == ["chain-3", *ARMS]


def test_two_arms_without_a_choice_between_them_are_refused(tmp_path):
    write_branches(tmp_path, branch_rows(BRANCH_SPEED | {"specbranch-no-hrad-6": 210}))
    with pytest.raises(ValueError, match="specbranch-no-hrad at T=0: 2 arms were measured"):
        read(tmp_path).arms("T=0")


def test_speeds_are_paired_and_name_their_clock(records):
    arms = records[0]["settings"][0]["arms"]
    assert {arm: speed["clock"] for arm, speed in arms.items()} == {
        **dict.fromkeys(("autoregressive", "chain-3", "specbranch-no-branch-8"), "wall"),
        **{arm: "wall" if arm.endswith("-wall") else "virtual" for arm in ARMS if arm != "specbranch-no-branch-8"},
    }
    speed = arms["specbranch-8"]
    assert speed["speedup"]["value"] == pytest.approx(2.4, rel=0.05)
    assert speed["gain"]["value"] == pytest.approx(0.5, abs=0.06)
    assert speed["speedup"]["high"] - speed["speedup"]["low"] < 0.3  # prompts differ fourfold in pace
    assert arms["chain-3"]["gain"]["value"] == 0


def test_pearl_is_compared_on_the_same_clock_only(records):
    arms = records[0]["settings"][0]["arms"]
    gains = {arm: speed["gain_over_pearl"] for arm, speed in arms.items()}
    assert gains["specbranch-8"]["value"] == pytest.approx(240 / 170 - 1, abs=0.07)
    assert gains["specbranch-8-wall"]["value"] == pytest.approx(110 / 90 - 1, abs=0.07)  # not 110 / 170
    assert gains["chain-3"]["value"] == pytest.approx(160 / 90 - 1, abs=0.1)  # a wall clock's time
    assert gains["pearl-4"] is None and gains["pearl-4-wall"] is None


def test_idle_share_is_that_of_steady_rounds(records):
    arms = records[0]["settings"][0]["arms"]
    idle = {arm: speed["target_idle"]["value"] for arm, speed in arms.items()}
    assert idle["pearl-4"] == pytest.approx(0.4) and idle["specbranch-8"] == pytest.approx(0.1)
    assert idle["chain-3"] is None and idle["specbranch-no-branch-8"] is None  # no round follows a hit


def test_counts_by_hand(records):
    counts = records[1]["settings"][0]["arms"]
    spec, pearl, in_turn = (counts[arm] for arm in ("specbranch-8", "pearl-4", "specbranch-no-branch-8"))
    assert spec["rollback_rate"]["value"] == pytest.approx(16 / 80)
    assert spec["rollback_less_pearl"]["value"] == pytest.approx(16 / 80 - 40 / 100)
    assert pearl["rollback_less_pearl"] is None
    assert spec["hits_per_branch_point"]["value"] == pytest.approx(18 / 24)
    assert spec["tested"]["value"] == pytest.approx(21 / 24)
    assert spec["trimmed_share"]["value"] == pytest.approx(4 / 80)
    assert spec["waste"]["value"] == pytest.approx(20 / 80)
    assert spec["rows_wasted"]["value"] == pytest.approx(170 / 200)
    assert spec["m_incl"]["value"] == pytest.approx(1 + 30 / 12)
    assert spec["block_efficiency"]["value"] == pytest.approx(59 / 30)
    assert spec["rolled_back"] == 6 * 16  # one repeat of six greedy prompts
    assert spec["equals_plain"] == {"equal": 6, "texts": 6}
    assert records[1]["settings"][1]["arms"]["pearl-4"]["equals_plain"] is None  # sampled
    assert in_turn["hits_per_branch_point"]["value"] is None
    assert in_turn["rollback_less_pearl"]["value"] == pytest.approx(20 / 60 - 40 / 100)
    assert "seconds" not in json.dumps(records[1])


def test_predictions_are_shown_beside_plain_decodings(tmp_path, monkeypatch):
    """A machine at three quarters of its profile's pace, and an arm at two thirds of what that leaves."""
    share = {"autoregressive": 0.75, "pearl-4": 0.5}
    told = "pipelines.reporting.branch_report.predicted_seconds"
    monkeypatch.setattr(told, lambda run, rounds, profile: run["seconds"] * share.get(run["arm"], 0.75))
    write_branches(tmp_path, branch_rows())
    profile = SimpleNamespace(tables={"beside_target", "branch_candidates"})
    branches = read(tmp_path)
    arms = BranchReport(branches, 50, 0, profile).timing()["settings"][0]["arms"]
    for name in ("of_prediction", "of_prediction_beside_plain"):
        assert {arm: speed[name]["value"] for arm, speed in arms.items() if arm in (*share, "specbranch-8")} == {
            "autoregressive": pytest.approx([0.75, 1][name.endswith("plain")]),
            "specbranch-8": pytest.approx([0.75, 1][name.endswith("plain")]),
            "pearl-4": pytest.approx([0.5, 2 / 3][name.endswith("plain")]),
        }
    assert BranchReport(branches, 50, 0).timing()["settings"][0]["arms"]["pearl-4"]["of_prediction"] is None


def test_sentences_name_clock_baselines_and_outcome(tmp_path):
    virtual, wall, really = told(tmp_path, {})
    assert virtual.startswith("On the virtual clock SpecBranch γ=8 is faster than plain decoding, 2.")
    assert "; faster than the best static draft (static γ=3), +5" in virtual
    assert "; faster than PEARL γ=4, +4" in virtual
    assert wall.startswith("On the wall clock SpecBranch γ=8 is faster than plain decoding, 1.1")
    assert "; slower than the best static draft (static γ=3), −3" in wall
    assert really == (
        "Really run concurrently on this machine, no arm is surely faster than the best static draft (static γ=3)."
    )


def test_sentences_turn_with_the_measurement(tmp_path):
    slow = told(tmp_path / "slow", {"specbranch-8": 80, "specbranch-8-wall": 300})
    assert "is slower than plain decoding, 0.8" in slow[0]
    assert "slower than the best static draft" in slow[0] and "slower than PEARL γ=4" in slow[0]
    assert slow[2].endswith("surely faster than the best static draft (static γ=3): SpecBranch γ=8.")
    even = told(tmp_path / "even", {"specbranch-8": 160, "pearl-4": 160})
    assert even[0].count("not told apart from") == 2


def test_without_hrad_the_section_speaks_of_specbranch_without_it(tmp_path):
    speed = {arm: rate for arm, rate in BRANCH_SPEED.items() if arm.startswith(("pearl-4", "specbranch-no-hrad"))}
    timing, _ = built(tmp_path, [row for row in branch_rows() if branch_arm(row["arm"]) is None] + only(speed))
    text = sentences(timing["settings"][0])
    assert text[0].startswith("On the virtual clock SpecBranch without H-RAD γ=4")


def only(speed):
    return [row for row in branch_rows() if row["arm"] in speed]


def test_without_wall_arms_the_test_is_said_to_be_missing(tmp_path):
    rows = [row for row in branch_rows() if not row["arm"].endswith("-wall")]
    timing, _ = built(tmp_path, rows)
    text = sentences(timing["settings"][0])
    assert text[1].startswith("No arm ran both models at once here")
    assert timing["settings"][0]["arms"]["chain-3"]["gain_over_pearl"] is None  # PEARL ran on the other clock


def test_the_page_shows_the_section_and_the_machines_records_hold_it(folder):
    text = (folder / "index.html").read_text()
    section = text.split("<h2>Drafting while the target verifies</h2>")[1].split("<h2>")[0]
    assert "Two clocks." in section and "handing over costs nothing" in section
    assert "On the virtual clock SpecBranch γ=8" in section and "no arm is surely faster" in section
    assert section.count("<caption>") == 4 and section.count("<img alt=") == 2
    assert (
        '<img alt="Pipeline diagram, a draft lane above a target lane for every arm. static γ=3, sequential: 2 rounds'
        in (section)
    )
    assert "<td>SpecBranch γ=8</td><td>virtual</td>" in section
    assert {"branches.png", "timelines.png"} <= {path.name for path in folder.iterdir()}
    timing, quality = (json.loads((folder / name).read_text()) for name in ("timing.json", "quality.json"))
    assert timing["branches"]["settings"][0]["arms"]["pearl-4"]["clock"] == "virtual"
    assert "seconds" not in json.dumps(quality)


def test_other_sections_hold_wall_clock_arms_only(inputs, folder, tmp_path, capsys):
    """Branch arms change nothing outside their section: the headline never speaks of a virtual time."""
    other = tmp_path / "inputs"
    shutil.copytree(inputs, other, ignore=shutil.ignore_patterns("reports", "measured"))
    rows = [row for row in branch_rows() if branch_arm(row["arm"]) is None]
    write_measured(other / "measured" / "toy-1c", rows)
    without = stage(other, tmp_path / "reports")
    for name in ("timing.json", "quality.json"):
        mine, theirs = (json.loads((place / name).read_text()) for place in (folder, without))
        assert mine.pop("branches") is not None and theirs.pop("branches") is None
        assert mine == theirs
    assert "timed no branch-parallel arm" in (without / "index.html").read_text()
    assert "no branch-parallel arm of toy-1c in" in capsys.readouterr().out
    assert not (without / "branches.png").exists() and not (without / "timelines.png").exists()


def test_without_timelines_the_section_says_so(inputs, tmp_path):
    other = tmp_path / "inputs"
    shutil.copytree(inputs, other, ignore=shutil.ignore_patterns("reports"))
    (other / "measured" / "toy-1c" / TIMELINES).unlink()
    place = stage(other, tmp_path / "reports")
    assert "No timeline was recorded" in (place / "index.html").read_text()
    assert (place / "branches.png").exists() and not (place / "timelines.png").exists()


def test_timelines_of_a_gamma_chosen_elsewhere_are_not_drawn(inputs):
    branches = read(inputs / "measured" / "toy-1c")
    recorded = {arm: [] for arm in ("chain-3", "pearl-2", "pearl-4", "pearl-4-wall")}
    assert list(branches.drawn(recorded)) == ["chain-3", "pearl-4", "pearl-4-wall"]
    runs = branches.whole.decodes
    sampled = BranchArms(replace(branches.whole, decodes=runs[runs["temperature"] > 0]))
    assert sampled.drawn(recorded) == recorded  # nothing was chosen for greedy text


def test_damaged_timelines_are_one_clear_message(tmp_path):
    assert read_timelines(tmp_path) == {}
    (tmp_path / TIMELINES).write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        read_timelines(tmp_path)


def test_names_as_people_read_them():
    assert shown_name("specbranch-no-hrad-8-wall") == "SpecBranch without H-RAD γ=8"
    assert shown_name("chain-3") == "static γ=3"
