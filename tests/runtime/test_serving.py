"""Number format and forward are decided once, by a margin, and read by every process after."""

import json
import re
import sys
import time
import warnings
from itertools import count
from random import Random
from unittest import mock

import pytest
import torch

from predictors.bundle import write_bundle
from predictors.latency.profile import LatencyProfile
from predictors.latency.serving import KEY, ModelServing, Serving
from runtime import ModelPair, serving
from runtime.serving import LEAST_SAVING, ServingDecision, fastest
from tests.toys import tiny_llama

CPU = torch.device("cpu")
ROWS = (1, 5)
MILLISECOND = 2.0**-10
INCUMBENT = ModelServing("bfloat16", "compact")
OTHER = ModelServing("float32", "compact")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 2), ("draft", 1)):
        tiny_llama(32, seed=layers, layers=layers).save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def one_processor(monkeypatch):
    """Not the processor that the tests run on: one with bfloat16, and without packed products."""
    monkeypatch.setattr(serving, "native_dtype", lambda device: torch.bfloat16)
    monkeypatch.setattr(serving, "FORWARDS", {"cpu": ("compact", "hugging_face")})


def decided(models, cost, traces=torch.bfloat16, **options):
    """The decision for the target where a pass takes what ``cost`` says of its format, forward and number."""
    numbers = count()

    def opened(model, rows):
        dtype = str(model.dtype).removeprefix("torch.")
        return lambda: [MILLISECOND * cost(dtype, model.forward, next(numbers)) for _ in rows]

    with mock.patch.object(serving, "open_turn", opened):
        return ServingDecision(models / "target", CPU, traces, ROWS, **options).decide()


@pytest.mark.parametrize(
    ("saved", "chosen"), [(LEAST_SAVING - 0.01, INCUMBENT), (LEAST_SAVING + 0.01, OTHER)], ids=["noise", "faster"]
)
def test_another_candidate_must_win_clearly(saved, chosen):
    assert fastest({INCUMBENT: 1.0, OTHER: 1 - saved}, INCUMBENT) == chosen
    assert fastest({OTHER: 1.0}, INCUMBENT) == fastest({OTHER: 1.0}, None) == OTHER  # the incumbent did not fit


@pytest.mark.parametrize("saved", [-0.08, 0.08])
def test_noise_below_the_margin_keeps_the_incumbent(models, saved):
    """Whichever candidate the noise favours: the format of the traces, by the forward that the model takes by itself."""
    decision = decided(models, lambda dtype, forward, number: 1 - saved * (dtype == "float32") + 0.01 * (number % 7))
    assert decision.chosen.name == INCUMBENT.name
    wrong = min(decision.seconds, key=decision.seconds.get)  # the deliberately wrong rule flips with the noise
    assert (wrong.dtype == "float32") == (saved > 0)


@pytest.mark.parametrize("winner", ["float32 hugging_face", "bfloat16 hugging_face", "float32 compact"])
def test_whatever_is_faster_by_more_is_taken(models, winner):
    decision = decided(models, lambda dtype, forward, number: 0.5 if f"{dtype} {forward}" == winner else 1.0)
    assert decision.chosen.name == winner
    assert {one.name: seconds for one, seconds in decision.seconds.items()} == {
        name: MILLISECOND * len(ROWS) * (0.5 if name == winner else 1.0)
        for name in ("bfloat16 compact", "bfloat16 hugging_face", "float32 compact", "float32 hugging_face")
    }
    pair = ModelPair.load(models / "target", device="cpu", record=Serving(decision.chosen))
    assert f"{str(pair.target.dtype).removeprefix('torch.')} {pair.target.forward}" == winner


def test_slow_moments_of_the_machine_do_not_count(models):
    """Half of the incumbent's passes take a hundred times as long."""

    def slow(dtype, forward, number):
        return 100.0 if dtype == "bfloat16" and Random(number).random() < 0.5 else 1.0

    assert decided(models, slow).chosen.name == INCUMBENT.name


def test_what_is_refused_or_does_not_fit_is_left_out_with_its_reason(models, monkeypatch):
    monkeypatch.setattr(serving, "FORWARDS", {"cpu": ("graphed", "compact", "hugging_face")})

    def refused(model, *forward):
        if forward == ("graphed",):
            raise ValueError("unavailable")
        return real(model, *forward)

    def load(path, device, dtype):
        if dtype is torch.float32:
            raise MemoryError("full")
        return loaded(path, device, dtype)

    real, loaded = serving.CausalLanguageModel, serving.load_model
    monkeypatch.setattr(serving, "CausalLanguageModel", refused)
    monkeypatch.setattr(serving, "load_model", load)
    decision = decided(models, lambda *call: 1.0)
    assert {one.name for one in decision.seconds} == {"bfloat16 compact", "bfloat16 hugging_face"}
    assert [re.sub(" is .*:", ":", note) for note in sorted(decision.notes)] == [
        "bfloat16 graphed: unavailable",
        "float32: full",
    ]


def test_large_models_are_not_tried_in_float32(models, monkeypatch):
    monkeypatch.setattr(serving, "MOST_PARAMETERS", 10)
    decision = decided(models, lambda *call: 1.0)
    assert {one.dtype for one in decision.seconds} == {"bfloat16"}
    assert re.match(r"float32 \D+([\d.]+)", decision.notes[0])[1] == "0.0"
    assert {one.dtype for one in decided(models, lambda *call: 1.0, traces=torch.float32).seconds} >= {"float32"}


SERVED = Serving(ModelServing("float32", "hugging_face"), ModelServing("bfloat16", "compact"), "toy-1c")


def profile_file(path, served=SERVED):
    path.write_text(json.dumps(LatencyProfile({}, "toys", {}, {}, serving=served).to_record()))
    return path


def bundle_folder(path, **card):
    write_bundle(path, {"kind": "fixed", "contract": {}, "decoder": {}, **card}, {})
    return path


def described(pair):
    return [(str(model.dtype), model.forward) for model in (pair.target, pair.draft)]


EXPECTED = [("torch.float32", "hugging_face"), ("torch.bfloat16", "compact")]


@pytest.mark.parametrize("kind", ["profile", "bundle"])
def test_a_pair_is_loaded_as_its_record_says(models, tmp_path, kind):
    record = profile_file(tmp_path / "toy-1c.json")
    if kind == "bundle":
        record = bundle_folder(tmp_path / "bundle", **{KEY: SERVED.to_record()})
    paths = {"target": models / "target", "draft": models / "draft", "device": "cpu", "record": record}
    assert described(ModelPair.load(**paths)) == EXPECTED
    assert described(ModelPair.load(**paths, dtype="float16")) == [
        ("torch.float16", "hugging_face"),
        ("torch.float16", "compact"),
    ]
    assert [forward for _, forward in described(ModelPair.load(**paths, forward="compact"))] == ["compact"] * 2
    alone = ModelPair.load(models / "target", device="cpu", record=record)
    assert alone.draft is None and alone.target.forward == "hugging_face"


def test_loading_never_looks_at_a_clock(models, tmp_path, monkeypatch):
    record = profile_file(tmp_path / "toy-1c.json")

    def stopwatch():
        if sys._getframe(1).f_globals["__name__"].startswith(("runtime", "predictors")):
            raise AssertionError("a stopwatch")
        return real()

    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", stopwatch)
    for name, module in list(sys.modules.items()):
        if name.startswith("runtime") and hasattr(module, "perf_counter"):
            monkeypatch.setattr(module, "perf_counter", stopwatch)
    for options in ({}, {"record": record}):
        ModelPair.load(models / "target", models / "draft", device="cpu", **options)
    with pytest.raises(AssertionError, match="a stopwatch"):  # the guard sees whoever times
        serving.open_turn(ModelPair.load(models / "target", device="cpu").target, (1,))()


def test_a_forward_that_is_not_available_here_gives_way_to_the_rule(models, tmp_path):
    elsewhere = Serving(ModelServing("float32", "graphed"), ModelServing("bfloat16", "compact"), "some-gpu")
    record = profile_file(tmp_path / "some-gpu.json", elsewhere)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair = ModelPair.load(models / "target", models / "draft", device="cpu", record=record)
    (message,) = [str(one.message) for one in caught if one.category is UserWarning]
    assert "some-gpu.json: target: forward 'graphed' " in message and "compact, packed, hugging_face" in message
    assert described(pair) == [("torch.float32", "compact"), ("torch.bfloat16", "compact")]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (lambda place: place / "none.json", r"none\.json: no latency profile can be read there .*dvc repro"),
        (lambda place: profile_file(place / "old.json", None), r"old\.json does not say .* Measure the profile again"),
        (lambda place: bundle_folder(place / "bundle"), r"bundle does not say .* Export it again"),
        (
            lambda place: profile_file(place / "alone.json", Serving(ModelServing("float32", "compact"))),
            r"alone\.json is of a target alone, and the pair has a draft\. Name this pair's",
        ),
        (
            lambda place: profile_file(place / "p.json", Serving(ModelServing("float32", "compact", "0f"), OTHER)),
            r"p\.json: target: was decided for a model of configuration 0f, and this one's is .*Name this pair's",
        ),
        (
            lambda place: bundle_folder(place / "damaged", **{KEY: {"target": {"dtype": 3}}}),
            r"damaged: card\.json: serving\.target",
        ),
        (
            lambda place: profile_file(place / "d.json", Serving(ModelServing("int8", "compact"), OTHER)),
            r"d\.json: target: dtype 'int8' is not a floating-point torch dtype",
        ),
    ],
    ids=["missing", "older profile", "older bundle", "no draft", "another pair", "damaged", "no number format"],
)
def test_records_that_do_not_serve_are_refused_by_name(models, tmp_path, record, message):
    with pytest.raises(ValueError, match=message):
        ModelPair.load(models / "target", models / "draft", device="cpu", record=record(tmp_path))


def test_a_decision_is_of_the_model_it_timed(models, tmp_path):
    """It can be read for the same model in any format, and not for another."""
    chosen = decided(models, lambda *call: 1.0).chosen
    record = profile_file(tmp_path / "p.json", Serving(chosen))
    assert ModelPair.load(models / "target", device="cpu", dtype="float16", record=record).target.forward == "compact"
    with pytest.raises(ValueError, match="was decided for a model of configuration"):
        ModelPair.load(models / "draft", device="cpu", record=record)
