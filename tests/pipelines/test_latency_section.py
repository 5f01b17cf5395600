"""What section ``latency`` says of a measurement and a profile written by hand."""

import dataclasses

import numpy as np
import pytest

from pipelines.outputs import write_json
from pipelines.reporting.inputs import Inputs, read_measured
from pipelines.reporting.latency import acceptance, by_arm, mismatches, predictions, section, summary
from predictors.latency.acceptance import AcceptanceStatistics
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import generation_latency
from tests.pipelines.hand_made_measured import MAIN_SPEED, decodes, write_measured
from tests.pipelines.hand_made_profile import PROFILE


@pytest.fixture(scope="module")
def profile():
    return LatencyProfile.from_record(PROFILE, "profile")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    write_measured(folder, decodes(MAIN_SPEED))
    return read_measured(folder)


@pytest.fixture
def made(measured, tmp_path):
    """The section by a profile's record."""

    def section_of(record):
        write_json(tmp_path / "latency" / "toy-1c.json", record)
        inputs = Inputs(tmp_path, "toy-1c")
        vars(inputs)["measured"] = measured
        return section(inputs)

    return section_of


def test_what_a_pass_costs_by_context(made):
    near, far = made(PROFILE).record()["tables"][0]["rows"]
    assert near["target pass, ms"] == pytest.approx({"value": 8e-3, "low": 7.2e-3, "high": 9.6e-3})
    assert near["draft step, ms"]["value"] == pytest.approx(1e-3)
    ratios = [
        (row["context"], row["draft steps per target pass"], row["pass of 5 tokens over one"]) for row in (near, far)
    ]
    assert ratios == [(32, pytest.approx(8), pytest.approx(1.5)), (128, pytest.approx(5), pytest.approx(2.5))]


def test_checks_meet_what_they_say(made):
    checks = {check.name: check for check in made(PROFILE).checks}
    step = checks["draft step, HF / compact, context 32"]
    assert step.measured == {"value": pytest.approx(2.0), "low": None, "high": None}, (
        "quartiles are no interval of a ratio"
    )
    assert (step.row()["met"], step.row()["surely"]) == (True, None)  # of 1.8
    tables = {name: table for name, table in PROFILE["tables"].items() if not name.endswith("hugging_face")}
    assert len(made({**PROFILE, "tables": tables}).checks) == 3 == len(checks) - 2


def test_predictions_rest_on_longer_drafts_rounds_and_the_profile_alone(measured, profile):
    """Of six prompts of 20 tokens and 60 new ones, each with histograms 9, 8 (chains of 1) and 9, 8, 7, 4 (chains of 3)."""
    rows = predictions(measured, profile)
    one, three = [54, 48], [54, 48, 42, 24]
    of_others = {"autoregressive": (0, [one, three]), "chain-1": (1, [three]), "chain-3": (3, [three])}
    assert len(rows) == 2 * len(of_others) and set(rows["arm"]) == set(of_others)
    for row in rows.to_dict("records"):
        gamma, histograms = of_others[row["arm"]]
        accepted = AcceptanceStatistics(histograms).accepted_law(gamma)
        expected = generation_latency(profile, accepted, gamma, 20, 60, sampled=row["setting"] != "T=0")
        assert (row["value"], row["low"]) == pytest.approx(expected.speeds(60)[:2])
        times = measured.test[(measured.test["arm"] == row["arm"]) & (measured.test["setting"] == row["setting"])]
        assert row["measured"] == pytest.approx(times["tokens"].sum() / times["seconds"].sum())


def test_requests_of_different_length_are_predicted_each_by_itself(measured, profile):
    runs = measured.decodes.copy()
    runs.loc[runs["prompt"] == "p0", ["prompt_tokens", "tokens"]] = 100, 8
    plain = predictions(dataclasses.replace(measured, decodes=runs), profile).iloc[0]
    seconds = [generation_latency(profile, [1.0], 0, p, n, sampled=False).seconds for p, n in ((20, 60), (100, 8))]
    assert plain["value"] == pytest.approx((5 * 60 + 8) / (5 * seconds[0] + seconds[1]))


def test_rounds_that_the_budget_cut_do_not_count(measured):
    """A run whose longest round was cut says nothing about longer drafts."""
    runs = measured.decodes.copy()
    cut = (runs["arm"] == "chain-3") & (runs["prompt"] == "p1")
    runs["uncut_histogram"] = [
        np.array([5, 0]) if at else own for at, own in zip(cut, runs["uncut_histogram"], strict=True)
    ]
    made = acceptance(dataclasses.replace(measured, decodes=runs), "T=0", ["chain-1", "chain-3"])
    assert made.rate == pytest.approx(AcceptanceStatistics([[54, 48], [45, 40, 35, 20]]).rate)


def test_errors_with_and_without_the_machines_drift(measured, profile, made):
    rows = predictions(measured, profile)
    rows["value"], rows["measured"] = [120, 150, 300, 90, 90, 90.0], [100, 100, 200, 100, 100, 120.0]
    rows["error"] = rows["value"] / rows["measured"] - 1
    whole = summary(rows.assign(speedup_error=[np.nan, 0.25, 0.25, np.nan, 0.0, -1 / 6]))
    assert (whole["median error"], whole["largest error"], whole["drift"]) == pytest.approx((0.225, 0.5, 0.05))
    assert (whole["median speedup error"], whole["largest speedup error"]) == pytest.approx((5 / 24, 0.25))
    table = made(PROFILE).record()["tables"][1]["rows"]
    assert [(row["sampling"], row["arms"]) for row in table] == [("T=0", 3), ("T=1", 3), ("all", 6)]
    true = predictions(measured, profile)
    plain, chain = true.iloc[0], true.iloc[1]
    assert chain["speedup_error"] == pytest.approx((1 + chain["error"]) / (1 + plain["error"]) - 1)
    assert table[0]["drift"] == pytest.approx(plain["error"]) and np.isnan(plain["speedup_error"])


def test_predictions_far_off_the_clock_are_not_shown(made):
    slow = {name: _scaled(table) for name, table in PROFILE["tables"].items()}
    shown = made({**PROFILE, "tables": slow})
    assert len(shown.tables) == len(shown.pictures) == 1 and len(shown.notes) == 1 + len(made(PROFILE).notes)


def _scaled(table):
    return table | {name: (1e-3 * np.array(table[name])).tolist() for name in ("low", "median", "high")}


def test_what_profile_and_decodes_do_not_share_is_named_with_both_values(measured):
    found = mismatches(PROFILE["provenance"], measured.origin)
    assert found == {"target dtype": ("bfloat16", "float32"), "threads": (3, 1)}
    assert mismatches(measured.origin, measured.origin) == {}


def test_the_picture_has_every_arm_as_it_was_measured_and_predicted(measured, profile):
    rows, tables = predictions(measured, profile), by_arm(predictions(measured, profile))
    cells = [row for table in tables for row in table.rows]
    assert [table.caption for table in tables] == ["T=0", "T=1"]
    assert [row["arm"] for row in cells] == ["plain", "γ=1", "γ=3"] * 2
    assert [row["measured, tokens/s"] for row in cells] == rows["measured"].tolist()
    for end in ("value", "low", "high"):
        assert [row["predicted, tokens/s"][end] for row in cells] == rows[end].tolist()


def test_without_a_profile_there_is_no_section(measured, tmp_path):
    inputs = Inputs(tmp_path, "toy-1c")
    vars(inputs)["measured"] = measured
    assert section(inputs) is None
