"""Greedy output equals the target's own, token for token in float32, with end-of-sequence and budget at every offset."""

import pytest

from runtime import ModelPair, build_decoder
from tests.branches import Scripted
from tests.greedy import greedy_text
from tests.toys import tiny_llama

CONTROLLERS = [
    {"kind": "fixed"},
    {"kind": "confidence", "epsilon": 0.5},
    {"kind": "confidence", "epsilon": 0.9, "min_tokens": 0},
    {"kind": "entropy"},
]
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def pair():
    return ModelPair(tiny_llama(seed=0), tiny_llama(seed=0, layers=1))


def chain(gamma, controller, verifier="block"):
    return {
        "method": "speculative",
        "drafter": {"kind": "chain", "gamma": gamma},
        "verifier": verifier,
        "controller": controller,
    }


@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
def test_greedy_equality(pair, controller, gamma):
    expected = greedy_text(pair.target.model, PROMPT, 40)
    out = build_decoder(pair, chain(gamma, controller)).generate(PROMPT, max_new_tokens=40)
    assert out.tokens == expected
    assert sum(record.emitted for record in out.rounds) == 40
    for record in out.rounds[1:]:
        assert 0 <= record.accepted <= record.drafted <= gamma
        assert record.rolled_back == record.drafted - record.accepted


def test_perfect_draft_accepts_everything():
    model = tiny_llama(seed=0)
    pair = ModelPair(model, model)
    out = build_decoder(pair, chain(4, {"kind": "fixed"})).generate(PROMPT, max_new_tokens=41)
    assert out.tokens == greedy_text(model, PROMPT, 41)
    assert [record.accepted for record in out.rounds[1:]] == [4] * 8


def test_autoregressive_equality(pair):
    out = build_decoder(pair, {"method": "autoregressive"}).generate(PROMPT, max_new_tokens=40)
    assert out.tokens == greedy_text(pair.target.model, PROMPT, 40)
    assert [record.emitted for record in out.rounds] == [1] * 40


@pytest.mark.parametrize("length", range(1, 12))
def test_budget_at_every_offset(pair, length):
    expected = greedy_text(pair.target.model, PROMPT, 12)
    out = build_decoder(pair, chain(4, {"kind": "fixed"})).generate(PROMPT, max_new_tokens=length)
    assert out.tokens == expected[:length]


@pytest.mark.parametrize("gamma", [1, 3, 4])
@pytest.mark.parametrize("eos_place", range(10))
@pytest.mark.parametrize("lies", [(), (4,)], ids=["honest", "lying"])
def test_end_of_sequence_at_every_offset(gamma, eos_place, lies):
    text = [2 + index % 5 for index in range(12)]
    text[eos_place] = 9
    pair = ModelPair(Scripted(text, 2), Scripted(text, 2, lies))
    out = build_decoder(pair, chain(gamma, {"kind": "fixed"})).generate([9, 0], max_new_tokens=12, eos_token_id=9)
    assert out.tokens == text[: eos_place + 1]


def test_drafting_stops_after_an_end_of_sequence_but_not_after_one_in_the_prompt():
    text = [2, 9, 3, 4, 5, 6]
    pair = ModelPair(Scripted(text, 1), Scripted(text, 1))
    out = build_decoder(pair, chain(4, {"kind": "fixed"})).generate([9], max_new_tokens=6, eos_token_id=[9, 11])
    assert out.tokens == [2, 9]
    assert out.rounds[1].drafted == 1
