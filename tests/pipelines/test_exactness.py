"""Greedy texts in short number formats: what rounding explains, and what it does not; and forwards that are not the model's."""

import math
import weakref
from types import SimpleNamespace

import pytest
import torch

from pipelines.gate import trial
from pipelines.gate.verdict import CHALLENGER
from pipelines.measuring import exactness
from pipelines.measuring.arm_rows import ArmRow
from pipelines.measuring.arms import ArmRun, hugging_face_arm
from pipelines.measuring.exactness import (
    GREEDY,
    PATH,
    TREE,
    first_unlikely,
    float32_pair,
    forward_agreement,
    greedy_differences,
    near_tie,
)
from pipelines.places import read_pair
from pipelines.report.inputs import Measured
from pipelines.stages.measure import MeasureConfig, _checks
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.compact import forward as compact
from runtime.memory import weight_bytes
from tests.bundles import random_bundle
from tests.pipelines.toy_bench import bench, measured, quietly, toy_bench, toy_prompts
from tests.toys import tiny_llama

PROMPT, NEW = [3, 1, 4], 8


def twins(dtype: torch.dtype, apart: float = 0.0, eos: int | None = None):
    """A target, its greedy text, where in it a token has a twin that is less likely by a share ``apart`` alone, and the twin."""
    model = tiny_llama(eos_token_id=eos).to(dtype)
    text = hugging_face_arm(model, None, NEW)(PROMPT, GREEDY, 0).tokens
    place, token = next((n, one) for n, one in enumerate(text) if n >= 2 and text.count(one) == 1)
    twin = next(one for one in range(32) if one not in (*text, *PROMPT, eos))
    with torch.no_grad():
        model.model.embed_tokens.weight[twin] = model.model.embed_tokens.weight[token]
        model.lm_head.weight[twin] = model.lm_head.weight[token] * (1 - apart)
    assert hugging_face_arm(model, None, NEW)(PROMPT, GREEDY, 0).tokens in (text, _with(text, place, twin))
    return model, text, place, twin


def _with(text: list[int], place: int, token: int) -> list[int]:
    return [*text[:place], token, *text[place + 1 :]]


def differences(monkeypatch, model, text: list[int]) -> list[int | None]:
    monkeypatch.setattr(exactness, "decoder_arm", lambda *_: lambda *_: ArmRun(text, None))
    return greedy_differences(ModelPair(model), {"one": None}, [PROMPT], NEW)["one"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_near_tie_is_accepted_and_what_follows_it_is_still_audited(monkeypatch, dtype):
    model, text, place, twin = twins(dtype)
    for ours in (text, _with(text, place, twin)):
        assert differences(monkeypatch, model, ours) == [None]
        for wrong in range(place + 1, NEW):
            unlikely = next(token for token in range(32) if token not in (*text, twin))
            assert differences(monkeypatch, model, _with(ours, wrong, unlikely)) == [wrong]


def test_in_float32_every_token_is_hugging_face_s(monkeypatch):
    model, text, place, twin = twins(torch.float32)
    theirs = hugging_face_arm(model, None, NEW)(PROMPT, GREEDY, 0).tokens
    other = _with(text, place, twin) if theirs == text else text
    assert differences(monkeypatch, model, theirs) == [None]
    assert differences(monkeypatch, model, other) == [place]


def test_two_roundings_of_the_larger_logit_are_a_near_tie(monkeypatch):
    """Half of that is rounding; four times as much is another text."""
    assert (near_tie(torch.bfloat16), near_tie(torch.float16)) == (2**-6, 2**-9)
    for apart, found in ((2**-7, None), (2**-4, "place")):
        model, text, place, twin = twins(torch.bfloat16, apart)
        assert differences(monkeypatch, model, _with(text, place, twin)) == [found and place]


def test_a_text_that_ends_elsewhere_than_a_greedy_one_is_not_exact():
    model, text, place, twin = twins(torch.bfloat16)
    target = ModelPair(model).target
    for length in (0, 1, NEW - 1):
        assert first_unlikely(target, PROMPT, text[:length], NEW) == length
    assert first_unlikely(target, PROMPT, [*text, 0], NEW) == NEW
    model.generation_config.eos_token_id = twin
    ended = [*text[:place], twin]
    assert first_unlikely(target, PROMPT, ended, NEW) is None
    assert first_unlikely(target, PROMPT, _with(text, place, twin), NEW) == place + 1


def test_logits_that_are_no_numbers_are_no_tie():
    model, text, *_ = twins(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    assert first_unlikely(ModelPair(model).target, PROMPT, text, NEW) == 0


def test_float32_is_loaded_where_it_fits_and_not_by_a_byte_less(tmp_path, monkeypatch):
    args = toy_bench(tmp_path, "unused", {})
    asked = []

    def available(free):
        monkeypatch.setattr(exactness, "available_memory", lambda device: asked.append(device.type) or free)
        return float32_pair(read_pair(args.pair_folder), [PROMPT], NEW)

    pair = available(10**9)
    assert pair.target.dtype is pair.draft.dtype is torch.float32 and pair.target.whole
    held = sum(map(weight_bytes, (pair.target, pair.draft)))
    assert available(held) is None, "caches take memory, too"
    low, high = held, 10**9
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if available(middle) else (middle + 1, high)
    assert held < low < held + 10**6 and len(set(asked)) == 1


@pytest.mark.parametrize(("free", "form"), [(10**9, "float32"), (0, "bfloat16")])
def test_a_trial_holds_one_pair_at_a_time(tmp_path, monkeypatch, free, form):
    """What was checked is gone before the served pair is loaded; where float32 does not fit, the served format is checked."""
    args, pair = bench(tmp_path, gammas=[1])
    monkeypatch.setattr("runtime.pair.native_dtype", lambda device: torch.bfloat16)
    bundles = {CHALLENGER: random_bundle(tmp_path / "new", pair, temperatures=(0.0,), change=measured)}
    held, open_bench, exact = [], trial.open_bench, trial.exact

    def opened(*arguments):
        assert [one() for one in held] == [None]
        return open_bench(*arguments)

    def noted(pair, *arguments):
        held.append(weakref.ref(pair.target.model))
        return exact(pair, *arguments)

    monkeypatch.setattr(exactness, "available_memory", lambda device: free)
    monkeypatch.setattr(trial, "open_bench", opened)
    monkeypatch.setattr(trial, "exact", noted)
    assert quietly(trial.attempt, args, "hrad", bundles).exactness == {f"greedy text 1, {form}": True}
    assert len(held) == 1


@pytest.mark.parametrize(("free", "form"), [(10**9, "float32"), (0, "bfloat16")])
def test_findings_and_the_report_name_the_format_that_was_checked(tmp_path, monkeypatch, free, form):
    args = toy_bench(tmp_path, "unused", {})
    location = read_pair(args.pair_folder)
    served = ModelPair.load(**location.models, dtype="bfloat16", whole=True)
    monkeypatch.setattr(exactness, "available_memory", lambda device: free)
    config = MeasureConfig(arms=(ArmRow("plain", "plain", decoder={"method": "autoregressive"}),), max_new_tokens=6)
    found = _checks(
        SimpleNamespace(location=location, pair=served), config, tmp_path, [prompt.tokens for prompt in toy_prompts(2)]
    )
    assert found["exactness"] == [{"arm": "plain", f"exact_{form}": True, "differs": [None, None]}]
    assert found["forward_agreement"].keys() == ({"target", "draft"} if form == "float32" else set())
    report = SimpleNamespace(findings=found, exact_format=Measured.exact_format.fget(SimpleNamespace(findings=found)))
    assert report.exact_format == form and Measured.exactness.fget(report) == {"plain": True}


PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7]]


def test_forwards_agree_to_rounding():
    """On a kept path of the tree that is no prefix of it."""
    assert [TREE[node] for node in PATH] == [-1, *PATH[:-1]] and tuple(range(len(PATH))) != PATH
    found = forward_agreement(CausalLanguageModel(tiny_llama(layers=3)), PROMPTS)
    assert 0 < found["compact"] < 1e-5 and found["rounding"] < 1e-5


@pytest.mark.parametrize("fault", ["kept rows", "angles", "epsilon", "no numbers"])
def test_a_wrong_forward_is_noticed(fault, monkeypatch):
    """Of no numbers built-in `max` would say 0: no number is less than NaN, or more."""
    norm = compact.norm
    if fault == "kept rows":
        monkeypatch.setattr("runtime.compact.state.CompactState.keep", lambda self, path: self.scratch.keep(path))
    elif fault == "angles":
        monkeypatch.setattr("runtime.compact.state.signed", lambda sin: sin)
    elif fault == "epsilon":
        monkeypatch.setattr(compact, "norm", lambda x, weight, epsilon: norm(x, weight, epsilon + 1e-3))
    else:
        monkeypatch.setattr(compact, "norm", lambda x, weight, epsilon: norm(x, weight, epsilon) * math.nan)
    found = forward_agreement(CausalLanguageModel(tiny_llama(layers=3)), PROMPTS)["compact"]
    assert math.isnan(found) if fault == "no numbers" else found > 1e-4
