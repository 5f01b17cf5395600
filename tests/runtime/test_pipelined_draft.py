"""A draft that moves between two devices says what one that stays says; here both devices are the CPU."""

import copy
from random import Random

import pytest
import torch

from runtime import ModelPair, Randomness, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.pipelined_draft import PipelinedDraft
from tests.runtime.walks import walk
from tests.toys import tiny_llama


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed=seed).double() for seed in (0, 1)]


def copies(model):
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("seed", range(20))
def test_random_walks_equal_one_model(models, seed):
    moving = PipelinedDraft(copies(models[1]), steps=1 + seed % 3).open(8)
    walk([moving, CausalLanguageModel(models[1], "compact").open(8)], Random(seed), vocabulary=32)


@pytest.mark.parametrize("overlap", ["none", "streams"])
def test_branches_of_a_moving_draft_decode_the_same_text(models, overlap):
    config = {"preset": "specbranch-no-hrad", "gamma": 4, "k_max": 2, "overlap": overlap}
    texts = []
    for draft in (models[1], PipelinedDraft(copies(models[1]), steps=2)):
        decoder = build_decoder(ModelPair(models[0], draft), config)
        for temperature in (0.0, 1.0):
            out = decoder.generate([3, 1, 4], max_new_tokens=32, temperature=temperature, randomness=Randomness(5))
            texts.append((out.tokens, [record.accepted for record in out.rounds]))
    assert texts[:2] == texts[2:]


def test_both_copies_work(models, monkeypatch):
    draft = PipelinedDraft(copies(models[1]), steps=2)
    state = draft.open(32)
    worked = []
    for name in ("_first", "_second"):
        one = getattr(state, name)
        forward = one.forward
        monkeypatch.setattr(one, "forward", lambda *given, f=forward, n=name: worked.append(n) or f(*given))
    for token in (1, 2, 3, 4):
        state.forward([token])
    state.keep([0, 1])
    state.forward([5])
    assert worked == ["_second", "_second", "_first", "_first", "_second"]


def test_rows_that_stayed_behind_would_be_noticed(models, monkeypatch):
    monkeypatch.setattr("runtime.compact.state.Memory.copy_rows", lambda self, other, first, last: None)
    state, plain = PipelinedDraft(copies(models[1]), steps=1).open(8), CausalLanguageModel(models[1], "compact").open(8)
    for token in (1, 2):
        outs = [one.forward([token]).logits for one in (state, plain)]
    assert not torch.allclose(*outs, atol=1e-2)


def test_a_hand_over_makes_room(models):
    states = PipelinedDraft(copies(models[1]), steps=1).open(8), CausalLanguageModel(models[1], "compact").open(8)
    for tokens in ([place % 30 for place in range(300)], [1]):
        outs = [state.forward(tokens, last=1).logits for state in states]
        torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)


def test_copies_that_differ_are_refused(models):
    with pytest.raises(ValueError, match="must be one model"):
        PipelinedDraft((models[1], tiny_llama(seed=1, layers=3).double()), steps=2)
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        PipelinedDraft(copies(models[1]), steps=0)
