"""The promotion gate: what every verdict must hold to, on any evidence, and what each condition alone decides."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.gate.evidence import VERSION, GateEvidence, read_evidence, require_match
from pipelines.gate.plan import Bounds, require_new, reserve_opens
from pipelines.gate.verdict import INCONCLUSIVE, PASSED, REFUSED, fingerprint, judge, judged, lines, reasons
from pipelines.outputs import write_json
from pipelines.registry.champions import Version
from predictors.config import parse_config
from tests.pipelines.hand_made_evidence import GOOD, PLAIN, STATIC, change, estimate, gains

ORDER = (REFUSED, INCONCLUSIVE, PASSED)
some_gains = st.floats(-0.15, 0.3)
estimates = st.builds(estimate, some_gains, st.floats(0.001, 0.08))
known = st.none() | estimates
evidences = st.builds(
    change,
    exactness=st.dictionaries(st.sampled_from(["hrad", "hrad at T=1"]), st.booleans()),
    calibration_error=st.none() | st.floats(0, 0.2) | st.just(float("nan")),
    exemption=st.none() | st.just("no model to calibrate"),
    gains=st.fixed_dictionaries({PLAIN: estimates, STATIC: estimates}, optional={"chain-2": known}),
    settings=st.dictionaries(st.sampled_from(["T=0", "T=1"]), known),
    slices=st.dictionaries(st.sampled_from(["code", "prose", "tables"]), known),
    documents=st.integers(0, 20).map(lambda count: tuple(f"d{number}" for number in range(count))),
    trained_documents=st.sampled_from([(), ("t0",), ("t0", "d3")]),
    reserve=st.booleans(),
)
good_evidences = st.builds(
    change,
    gains=st.fixed_dictionaries({PLAIN: estimates, STATIC: estimates}),
    settings=st.fixed_dictionaries({"T=0": estimates, "T=1": estimates}),
)


def outcome(evidence, bounds=None):
    return judge(evidence, bounds or Bounds()).outcome


def passes(one: GateEvidence, bounds: Bounds) -> bool:
    """The conditions of a pass, written once more."""
    judged_slices = [part for part in one.slices.values() if part is not None]
    calibrated = one.exemption is not None if one.calibration_error is None else one.calibration_error <= 0.08
    return (
        bool(one.exactness)
        and all(one.exactness.values())
        and calibrated
        and len(one.documents) >= bounds.min_documents
        and bool(one.trained_documents)
        and not set(one.documents) & set(one.trained_documents)
        and all(rival is not None and rival.low(bounds.alpha) > bounds.margin for rival in one.gains.values())
        and bool(one.settings)
        and bool(judged_slices)
        and all(
            part is not None and part.low() > -bounds.guardrail for part in (*one.settings.values(), *judged_slices)
        )
    )


@settings(max_examples=200, deadline=None)
@given(evidences, st.sampled_from([Bounds(), Bounds(margin=0.02), Bounds(alpha=0.1), Bounds(guardrail=0.0)]))
def test_a_bundle_passes_exactly_if_it_is_surely_above_every_rival_and_nothing_else_is_amiss(evidence, bounds):
    verdict = judge(evidence, bounds)
    assert verdict.passed == passes(evidence, bounds) == (not reasons(verdict.to_record()))
    assert verdict.outcome in ORDER


@settings(max_examples=120, deadline=None)
@given(good_evidences, st.sampled_from([PLAIN, STATIC]), st.sampled_from(["T=0", "T=1"]), st.floats(0, 0.2))
def test_a_larger_gain_is_never_judged_worse(evidence, rival, setting, more):
    def raised(known, name):
        return known | {name: dataclasses.replace(known[name], value=known[name].value + more)}

    for better in (
        dataclasses.replace(evidence, gains=raised(evidence.gains, rival)),
        dataclasses.replace(evidence, settings=raised(evidence.settings, setting)),
    ):
        assert ORDER.index(outcome(better)) >= ORDER.index(outcome(evidence))


@settings(max_examples=40, deadline=None)
@given(st.floats(0.0501, 0.3), st.floats(0.001, 0.1), st.floats(0, 1))
def test_of_a_gain_above_the_promised_one_a_smaller_error_is_never_judged_worse(gain, error, share):
    wide, narrow = (outcome(change(**gains(gain, some))) for some in (error, share * error))
    assert ORDER.index(narrow) >= ORDER.index(wide)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 1), st.floats(0.001, 0.04), st.sampled_from(["setting", "slice"]))
def test_a_guardrail_that_surely_breaks_refuses_whatever_the_gain(gain, error, where):
    loss = estimate(-0.15, error)
    assert loss.high() < -Bounds().guardrail
    broken = {"settings": GOOD.settings | {"T=1": loss}}
    broken = {"slices": GOOD.slices | {"prose": loss}} if where == "slice" else broken
    assert outcome(change(**broken, **gains(gain, error))) == REFUSED


NOTHING = {"gains": {}, "reference": None, "settings": {}, "slices": {}, "documents": (), "exactness": {}}
ALONE = [  # what alone refuses, and what more documents could settle
    (REFUSED, "contract", NOTHING | {"problem": "tokenizer hash differs"}),
    (REFUSED, "exactness", {"exactness": {"hrad": True, "hrad at T=1": False}}),
    (REFUSED, "calibration", {"calibration_error": float("nan")}),
    (REFUSED, "calibration", {"calibration_error": 0.2, "exemption": "no model to calibrate"}),
    (REFUSED, "untrained", {"documents": (*GOOD.documents, "t1")}),
    (REFUSED, "gain", {"gains": {PLAIN: estimate(0.9), STATIC: estimate(0.06)}, "champion": "b" * 64}),
    (REFUSED, "gain", {"gains": {STATIC: estimate(0.06)}}),
    (REFUSED, "gain", {"gains": {PLAIN: estimate(0.06)}, "reference": PLAIN}),
    (REFUSED, "gain over chain-2", gains(-0.01, rival="chain-2")),
    (REFUSED, "guardrail T=1", {"settings": GOOD.settings | {"T=1": estimate(-0.09)}}),
    (REFUSED, "guardrail prose", {"slices": GOOD.slices | {"prose": estimate(-0.11)}}),
    (INCONCLUSIVE, "gain over chain-4", gains(0.03, 0.02)),
    (INCONCLUSIVE, "untrained", {"documents": GOOD.documents[:7]}),
    (INCONCLUSIVE, "guardrail T=1", {"settings": GOOD.settings | {"T=1": estimate(-0.06)}}),
    (INCONCLUSIVE, "guardrail prose", {"slices": GOOD.slices | {"prose": estimate(-0.06)}}),
    (INCONCLUSIVE, "gain over chain-4", {"gains": GOOD.gains | {STATIC: None}}),
    (INCONCLUSIVE, "guardrail T=1", {"settings": GOOD.settings | {"T=1": None}}),
    (INCONCLUSIVE, "guardrail slices", {"slices": {"tables": None}}),
]


@pytest.mark.parametrize(("verdict", "name", "values"), ALONE)
def test_every_condition_decides_alone(verdict, name, values):
    found = judge(change(**values), Bounds())
    assert found.outcome == verdict and [check.name for check in found.checks if not check.passed] == [name]


def test_a_trial_counts_once_and_the_reserve_opens_after_an_inconclusive_one():
    untried = {"verdict": REFUSED, "smallest_gain": None, "evidence_sha256": "x", "documents_sha256": "d"}
    opened = untried | {"verdict": INCONCLUSIVE, "smallest_gain": 0.05}
    assert not reserve_opens([], "p-hrad", "1") and not reserve_opens([untried, untried], "p-hrad", "1")
    assert reserve_opens([untried, opened], "p-hrad", "1")
    for earlier in ([opened | {"verdict": REFUSED}], [opened, opened | {"documents_sha256": "e"}]):
        with pytest.raises(ValueError, match="one more would pass by chance"):
            reserve_opens(earlier, "p-hrad", "1")
    for record in ({"evidence_sha256": "x"}, {"evidence_sha256": "y", "documents_sha256": "e"}):
        require_new(opened | record, [opened])
    require_new(opened | {"evidence_sha256": "y"}, [untried])
    with pytest.raises(ValueError, match="was tried on these documents already"):
        require_new(opened | {"evidence_sha256": "y"}, [opened])


def test_the_verdict_says_what_it_could_have_shown_and_is_four_lines():
    evidence = change(**gains(0.03, 0.02))
    verdict = judge(evidence, Bounds())
    assert verdict.smallest_gain == pytest.approx(0.0597, abs=0.001)
    assert verdict.documents_needed == pytest.approx(152, abs=5) and verdict.static_slices == ("tables",)
    assert judge(change(**gains(-0.01, 0.03)), Bounds()).documents_needed is None
    record = json.loads(json.dumps(judged(evidence, Bounds())))
    assert len(lines(record)) == 4 and record["version"] == 3 and record["verdict"] == INCONCLUSIVE
    assert parse_config(GateEvidence, record["evidence"], "evidence") == evidence
    assert record["evidence_sha256"] == fingerprint(evidence) != fingerprint(GOOD)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"pair": "q"}, "on q-hrad"),
        ({"predictor": "length"}, "on p-length"),
        ({"origin": {"device": {"slug": "h100"}}}, "from machine h100"),
        ({"bundle_sha256": "b" * 64}, "on content bbbbbbbbbbbb"),
        ({"champion": "b" * 64}, "compares with champion bbbbbbbbbbbb"),
    ],
)
def test_evidence_is_read_as_written_and_is_on_this_pair_predictor_content_and_machine(tmp_path, changes, problem):
    write_json(tmp_path / "evidence.json", dataclasses.asdict(GOOD))
    where = ("p", "hrad"), Version("1", "a" * 64), None, "toy-1c"
    require_match(read_evidence(tmp_path / "evidence.json"), *where)
    assert read_evidence(tmp_path / "evidence.json") == GOOD
    with pytest.raises(ValueError, match=problem):
        require_match(change(**changes), *where)


NEEDED = [
    one.name for one in dataclasses.fields(GateEvidence) if one.default is one.default_factory is dataclasses.MISSING
]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[]", "expected a mapping"),
        (b"\xff\x00", "decode"),
        ({"gains": {"chain-4": {"value": "much"}}}, "gains.chain-4"),
        ({"version": VERSION - 1}, "version must be 3"),
        ({"reference": "chain-9"}, "reference must be one of the rivals"),
        ({"exactness": {"hrad": "false"}}, "exactness check 'hrad' must be true or false"),
        *(({key: ...}, f"key '{key}' is missing") for key in NEEDED),
    ],
)
def test_what_is_no_evidence_is_named(tmp_path, content, problem):
    file = tmp_path / "evidence.json"
    if isinstance(content, dict):
        record = dataclasses.asdict(GOOD) | content
        content = json.dumps({key: value for key, value in record.items() if value is not ...}).encode()
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"(?s)evidence.json holds no evidence.*{problem}"):
        read_evidence(file)


@pytest.mark.parametrize("values", [{"margin": -0.1}, {"alpha": 0.6}, {"promised": 0.0}])
def test_bounds_make_sense(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Bounds(**values)
