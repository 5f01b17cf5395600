"""The promotion gate: what passes, what is refused and what stays open, and that every condition alone decides."""

import dataclasses
import json
import math
import re

import pytest

from pipelines.evidence.estimate import Estimate
from pipelines.evidence.gain import SliceGain
from pipelines.promotion.evidence import Evidence
from pipelines.promotion.gate import fingerprint, judge, judged
from pipelines.promotion.plan import Bounds
from pipelines.promotion.verdict import EXHAUSTED, INCONCLUSIVE, PASSED, REFUSED, lines, reasons
from predictors.config import parse_config


def estimate(gain, error=0.015, **changes):
    return dataclasses.replace(Estimate(math.log1p(gain), error, 30.0, 40, 60), **changes)


def part(value, low, judged=True):
    return SliceGain(value, low, None if value is None else value + 0.05, 12, judged)


PLAIN, STATIC = "autoregressive", "chain-4"
GOOD = Evidence(
    pair="p",
    predictor="hrad",
    bundle_sha256="a" * 64,
    champion=None,
    problem=None,
    exactness={"hrad": True},
    calibration_error=0.03,
    gains={PLAIN: estimate(0.9), "chain-2": estimate(0.12), STATIC: estimate(0.06)},
    reference=STATIC,
    settings={"T=0": estimate(0.07), "T=1": estimate(0.05, 0.02)},
    slices={"code": part(0.06, 0.04), "prose": part(0.05, 0.0), "tables": part(None, None, judged=False)},
    documents=tuple(f"d{number}" for number in range(45)),
    trained_documents=("t0", "t1"),
    documents_left=30,
)


def change(**values):
    return dataclasses.replace(GOOD, **values)


def gains(gain, error=0.015, rival=STATIC):
    return {"gains": GOOD.gains | {rival: estimate(gain, error)}}


def failed(evidence, bounds=None):
    """What did not pass, and the verdict."""
    verdict = judge(evidence, bounds or Bounds())
    assert verdict.passed == (not reasons(verdict.to_record()))
    return [check.name for check in verdict.checks if not check.passed], verdict.outcome


def test_a_sure_gain_over_every_rival_passes():
    assert failed(GOOD) == ([], PASSED)
    champion = change(champion="b" * 64, reference="champion", **gains(0.05, rival="champion"))
    assert failed(champion) == ([], PASSED)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("exactness", {"exactness": {"hrad": True, "hrad at T=1": False}}),
        ("exactness", {"exactness": {}}),
        ("calibration", {"calibration_error": 0.2}),
        ("calibration", {"calibration_error": float("nan")}),
        ("calibration", {"calibration_error": None}),
        ("untrained", {"documents": (*GOOD.documents, "t1")}),
        ("untrained", {"trained_documents": ()}),
        ("gain", {"gains": {PLAIN: estimate(0.9), STATIC: estimate(0.06)}, "champion": "b" * 64}),
        ("gain", {"gains": {STATIC: estimate(0.06)}}),
        ("gain", {"gains": {PLAIN: estimate(0.06)}, "reference": PLAIN}),
        ("gain over chain-4", gains(0.0)),
        ("gain over autoregressive", gains(-0.1, rival=PLAIN)),
        ("gain over chain-2", gains(-0.01, rival="chain-2")),
        ("guardrail T=1", {"settings": GOOD.settings | {"T=1": estimate(-0.09)}}),
        ("guardrail prose", {"slices": GOOD.slices | {"prose": part(-0.11, -0.14)}}),
    ],
)
def test_every_condition_alone_refuses(name, values):
    assert failed(change(**values)) == ([name], REFUSED)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gain", {"origin": {"capped": True}}),
        ("gain over chain-4", gains(0.03, 0.02)),
        ("untrained", {"documents": GOOD.documents[:7]}),
        ("guardrail T=1", {"settings": GOOD.settings | {"T=1": estimate(-0.02, 0.03)}}),
        ("guardrail prose", {"slices": GOOD.slices | {"prose": part(-0.04, -0.09)}}),
        ("guardrail T=1", {"settings": GOOD.settings | {"T=1": estimate(-0.06)}}),
        ("guardrail prose", {"slices": GOOD.slices | {"prose": part(-0.06, -0.09)}}),
        ("gain over chain-4", {"gains": {PLAIN: estimate(0.9)}, "few_rivals": (STATIC,)}),
        ("guardrail T=1", {"settings": {"T=0": estimate(0.07)}, "few_settings": ("T=1",)}),
        ("guardrail settings", {"settings": {}}),
        ("guardrail slices", {"slices": {"tables": part(None, None, judged=False)}}),
    ],
)
def test_what_more_documents_could_settle_is_inconclusive(name, values):
    assert failed(change(**values)) == ([name], INCONCLUSIVE)


def test_a_bundle_that_cannot_be_tried_is_refused_by_contract_alone():
    nothing = {"gains": {}, "reference": None, "settings": {}, "slices": {}, "documents": (), "exactness": {}}
    assert failed(change(problem="tokenizer hash differs", **nothing)) == (["contract"], REFUSED)


def test_a_refusal_outweighs_what_is_open():
    assert failed(change(calibration_error=0.2, **gains(0.03, 0.02)))[1] == REFUSED


def test_the_bound_is_the_look_s_own():
    """A gain whose lower bound at the level of one look alone lies above the margin, and at the first of three does not."""
    barely = change(**gains(0.0365, 0.0175))
    assert failed(barely)[1] == INCONCLUSIVE
    assert failed(barely, Bounds(looks=(1.0,)))[1] == PASSED
    assert judge(barely, Bounds()).level == Bounds().level(1) < 0.025
    assert failed(change(**gains(0.06)), Bounds(margin=0.03, promised=0.08))[1] == INCONCLUSIVE


def test_a_gain_is_refused_once_the_promised_one_is_ruled_out():
    """+1 % with an error of 1.5 % is surely below 5 %; with 3 % it is not, while documents are left."""
    assert failed(change(**gains(0.01, 0.015)))[1] == REFUSED
    assert failed(change(**gains(0.01, 0.03)))[1] == INCONCLUSIVE


def test_the_last_look_refuses_if_it_would_have_shown_the_promised_gain():
    open_gain = gains(0.029, 0.0132)
    assert failed(change(**open_gain))[1] == INCONCLUSIVE
    assert failed(change(look=3, **open_gain))[1] == REFUSED, "5 % would have passed in 80 % of cases"
    assert failed(change(documents_left=0, **open_gain))[1] == REFUSED
    verdict = judge(change(look=3, **gains(0.03, 0.03)), Bounds())
    assert verdict.outcome == INCONCLUSIVE and verdict.exhausted
    assert EXHAUSTED in reasons(verdict.to_record())
    past = judge(change(look=4), Bounds())
    assert past.outcome == INCONCLUSIVE and past.exhausted and past.level is None
    assert not judge(change(**gains(0.03, 0.02)), Bounds()).exhausted


def test_a_guardrail_refuses_by_an_estimate_at_the_last_look_alone():
    """-6 % with an error of 1.5 % may be -4 %; at -9 % it is surely below -5 %."""
    for loss, outcomes in ((-0.06, [INCONCLUSIVE, INCONCLUSIVE, REFUSED]), (-0.09, [REFUSED] * 3)):
        slower = change(settings=GOOD.settings | {"T=1": estimate(loss)})
        assert slower.settings["T=1"].gain < -Bounds().guardrail, "an estimate alone would refuse at every look"
        assert [judge(dataclasses.replace(slower, look=look), Bounds()).outcome for look in (1, 2, 3)] == outcomes
        assert judge(dataclasses.replace(slower, documents_left=0), Bounds()).outcome == REFUSED
    open_end = judge(change(look=3, settings=GOOD.settings | {"T=1": estimate(-0.04, 0.03)}), Bounds())
    assert open_end.outcome == INCONCLUSIVE and open_end.exhausted


def test_documents_are_exhausted_only_if_a_check_says_so():
    """Too few documents, or a trial that was cut short, are not for want of a reserve."""
    for values in ({"documents": GOOD.documents[:7]}, {"origin": {"capped": True}}, {"settings": {}}):
        for end in ({"documents_left": 0}, {"look": 3}):
            verdict = judge(change(**values, **end), Bounds())
            assert verdict.outcome == INCONCLUSIVE and not verdict.exhausted
    assert judge(change(documents_left=0, **gains(0.03, 0.03)), Bounds()).exhausted


def test_the_verdict_says_what_it_could_have_shown():
    verdict = judge(change(**gains(0.03, 0.02)), Bounds())
    assert verdict.smallest_gain == pytest.approx(0.0643, abs=0.001) and verdict.documents_needed == pytest.approx(
        178, abs=5
    )
    assert judge(change(**gains(-0.01, 0.03)), Bounds()).documents_needed is None
    assert verdict.static_slices == ("tables",) and (verdict.look, verdict.looks, verdict.documents_left) == (1, 3, 30)


def test_a_model_free_bundle_needs_no_calibration_and_says_so():
    free = change(calibration_error=None, exemption="no model to calibrate")
    assert failed(free) == ([], PASSED)
    assert free.exemption in [check.found for check in judge(free, Bounds()).checks]
    assert failed(change(calibration_error=0.2, exemption=free.exemption))[0] == ["calibration"]


def test_the_verdict_is_json_and_four_lines():
    evidence = change(**gains(0.03, 0.02))
    record = json.loads(json.dumps(judged(evidence, Bounds())))
    assert record["version"] == 2 and record["verdict"] == INCONCLUSIVE and not record["passed"]
    assert [check["passed"] for check in record["checks"]].count(False) == 1
    first, gain, checks, power = lines(record)
    assert first.startswith("p-hrad (aaaaaaaaaaaa): inconclusive at look 1 of 3 (45 documents")
    passed = [re.search(r"(\d) of (\d)", line).groups() for line in (gain, checks)]
    assert passed == [("2", "3"), ("8", "8")] and "+3.0%" in gain
    assert re.search(r"\btables\b", checks) and {"80%", "30"} <= set(power.split())
    assert parse_config(Evidence, record["evidence"], "evidence") == evidence
    assert record["evidence_sha256"] == fingerprint(evidence) != fingerprint(GOOD)
    assert record["evidence_sha256"] == fingerprint(parse_config(Evidence, record["evidence"], "evidence"))


NEEDED = [one.name for one in dataclasses.fields(Evidence) if one.default is one.default_factory is dataclasses.MISSING]


@pytest.mark.parametrize("key", NEEDED)
def test_evidence_that_lacks_what_is_judged_is_no_evidence(key):
    record = {name: value for name, value in dataclasses.asdict(GOOD).items() if name != key}
    with pytest.raises(ValueError, match=f"evidence: key '{key}' is missing"):
        parse_config(Evidence, record, "evidence")


@pytest.mark.parametrize(
    "values",
    [
        {"margin": -0.1},
        {"guardrail": float("nan")},
        {"calibration_error": -1.0},
        {"promised": 0.0},
        {"alpha": 0.6},
        {"power": 1.0},
        {"slice_spread": 0.0},
        {"min_documents": 0},
        {"slice_documents": 1},
        {"looks": ()},
        {"looks": (0.5, 1.5)},
    ],
)
def test_bounds_make_sense(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Bounds(**values)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"version": 1}, "version must be 2"),
        ({"look": 0}, "look must be >= 1"),
        ({"reference": "chain-9"}, "reference must be one of the rivals"),
        ({"exactness": {"hrad": "false"}}, "'hrad' must be true or false"),
    ],
)
def test_evidence_makes_sense(values, problem):
    with pytest.raises(ValueError, match=problem):
        change(**values)
