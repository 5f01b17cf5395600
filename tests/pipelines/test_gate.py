"""The promotion gate: what passes, and that every condition alone can refuse."""

import dataclasses
import json

import pytest

from pipelines.promotion.gate import Bounds, Evidence, judge
from pipelines.promotion.names import BEST_STATIC

GOOD = Evidence(
    pair="p",
    predictor="hrad",
    bundle_sha256="a" * 64,
    baseline=BEST_STATIC,
    problem=None,
    exactness={"hrad": True},
    calibration_error=0.03,
    gain={"value": 0.06, "low": 0.02, "high": 0.1},
    hindsight={"value": 0.01, "low": -0.03, "high": 0.05},
    slices={
        "T=0 code": {"value": 0.07, "low": 0.0, "high": 0.12},
        "T=0 prose": {"value": -0.01, "low": -0.06, "high": 0.04},
    },
    documents=tuple(f"d{number}" for number in range(10)),
    trained_documents=("t0", "t1"),
)


def change(**values):
    return dataclasses.replace(GOOD, **values)


def gain(low, value=0.05):
    return {"value": value, "low": low, "high": 0.2}


def failed(evidence, bounds=None):
    verdict = judge(evidence, bounds or Bounds())
    assert verdict.passed == (not verdict.reasons)
    return [check.name for check in verdict.checks if not check.passed]


def test_an_improvement_over_the_best_static_setting_or_the_champion_passes():
    assert failed(GOOD) == [] and failed(change(baseline="b" * 64)) == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("contract", {"problem": "tokenizer hash differs"}),
        ("exactness", {"exactness": {"hrad": True, "hrad at T=1": False}}),
        ("exactness", {"exactness": {}}),
        ("calibration", {"calibration_error": 0.2}),
        ("calibration", {"calibration_error": float("nan")}),
        ("calibration", {"calibration_error": None}),
        ("gain", {"gain": gain(-0.01)}),
        ("gain", {"gain": gain(0.0, 0.0)}),
        ("gain", {"gain": gain(None, None)}),
        ("gain", {"gain": gain(float("nan"))}),
        ("gain", {"hindsight": gain(-0.05, -0.01)}),
        ("gain", {"hindsight": gain(None, None)}),
        ("gain", {"hindsight": None}),
        ("gain", {"origin": {"capped": True}}),
        ("slices", {"slices": {**GOOD.slices, "T=1": {"value": -0.06, "low": -0.1, "high": 0.0}}}),
        ("slices", {"slices": {**GOOD.slices, "T=0 prose": {"value": None, "low": None, "high": None}}}),
        ("slices", {"slices": {}}),
        ("untrained", {"documents": (*GOOD.documents, "t1")}),
        ("untrained", {"documents": GOOD.documents[:7]}),
        ("untrained", {"documents": GOOD.documents[:1] * 20}),
        ("untrained", {"trained_documents": ()}),
    ],
)
def test_every_condition_alone_refuses(name, values):
    assert failed(change(**values)) == [name]


def test_a_champion_is_the_baseline_whatever_static_chains_do():
    assert failed(change(baseline="b" * 64, hindsight=gain(-0.2, -0.1))) == []


def test_a_tie_is_no_improvement():
    assert failed(change(gain={"value": 0.0, "low": 0.0, "high": 0.0})) == ["gain"]
    assert failed(change(gain=gain(0.02)), Bounds(margin=0.02)) == ["gain"]


def test_a_model_free_bundle_needs_no_calibration_and_says_so():
    free = change(calibration_error=None, exemption="no model to calibrate")
    assert failed(free) == [] and judge(free, Bounds()).checks[2].found == "no model to calibrate"
    assert failed(change(calibration_error=0.2, exemption="no model to calibrate")) == ["calibration"]


def test_a_refusal_says_why_in_numbers():
    (reason,) = judge(change(gain=gain(-0.012), baseline="b" * 64), Bounds()).reasons
    assert reason == "gain: +5.0% (-1.2% to +20.0%) over champion bbbbbbbbbbbb, wanted lower end above 0.0%"
    (reason,) = judge(change(hindsight=gain(-0.05, -0.01)), Bounds()).reasons
    assert reason == (
        "gain: +6.0% (+2.0% to +10.0%) over best static, -1.0% (-5.0% to +20.0%) over the static chain that was fastest in "
        "hindsight, wanted lower end above 0.0%, and over the static chain that was fastest in hindsight not below 0"
    )
    (reason,) = judge(change(origin={"capped": True}, baseline="b" * 64), Bounds()).reasons
    assert "out of time (max_minutes) with +6.0%" in reason and "wanted a trial of all prompts" in reason
    (reason,) = judge(change(documents=(*GOOD.documents, "t0", "t1")), Bounds()).reasons
    assert "2 of 12 documents were trained on (t0, t1)" in reason


def test_the_verdict_is_json():
    record = json.loads(json.dumps(judge(GOOD, Bounds()).to_record()))
    assert record["passed"] and len(record["checks"]) == 6


@pytest.mark.parametrize(
    "values", [{"margin": -0.1}, {"slice_margin": float("nan")}, {"calibration_error": -1.0}, {"min_documents": 0}]
)
def test_bounds_make_sense(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Bounds(**values)
