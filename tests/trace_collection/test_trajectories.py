"""Texts that are drawn together: each has the law of a text drawn alone, whatever is drawn beside it."""

import dataclasses

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.enumeration import enumerate_outcomes, summed, total_variation
from runtime.audit.tables import TableModel
from tests.toys import tiny_llama
from trace_collection import trajectories
from trace_collection.text_tracer import walk
from trace_collection.trajectories import Trajectory, continuations

PROMPTS = [[0, 1], [2]]
UNIT, COLD, GREEDY = SamplingSettings(1.0), SamplingSettings(0.7, top_k=2), SamplingSettings(0.0)


def ending(vocabulary, seed):
    model = TableModel(vocabulary, seed=seed)
    model.eos_tokens = frozenset({2})
    return model


def together(model, prompts, settings, budget):
    def run(chance):
        some = [Trajectory(prompt, one, chance) for prompt, one in zip(prompts, settings, strict=True)]
        return tuple(tuple(one.tokens) for one in continuations(model, some, budget))

    return summed(enumerate_outcomes(run))


def alone(model, prompts, settings, budget):
    decoder = build_decoder(ModelPair(model), {"method": "autoregressive"})

    def run(chance):
        options = [{**dataclasses.asdict(one), "max_new_tokens": budget, "randomness": chance} for one in settings]
        return tuple(
            tuple(decoder.generate(prompt, **one).tokens) for prompt, one in zip(prompts, options, strict=True)
        )

    return summed(enumerate_outcomes(run))


@pytest.mark.parametrize(
    "settings", [(UNIT, UNIT), (COLD, COLD), (UNIT, COLD)], ids=["at 1", "at 0.7 of 2 tokens", "at both"]
)
@pytest.mark.parametrize("prompts", [PROMPTS[:2], [PROMPTS[0]] * 2], ids=["of two prompts", "of one"])
@pytest.mark.parametrize("most_rows", [4096, 7])
def test_texts_drawn_together_are_independent_texts(prompts, settings, most_rows, monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_ROWS", most_rows)
    model = ending(3, seed=1)
    found, expected = (law(model, prompts, settings, 3) for law in (together, alone))
    assert len(expected) > 20 and total_variation(found, expected) < 1e-9
    assert any(len(text) < 3 for texts in expected for text in texts), "a text ends at its end of sequence"


def test_a_text_that_goes_on_from_another_is_found_out():
    """The wrong twin: all nodes hang under the first text's newest."""
    model = ending(3, seed=1)
    expected = alone(model, PROMPTS[:2], (UNIT, UNIT), 3)
    opened = model.open

    def wrong(*given):
        state = opened(*given)
        right = state.forward
        state.forward = lambda tokens, parents, last=None: right(
            tokens, parents if last else [parents[0]] * len(parents), last
        )
        return state

    model.open = wrong
    assert total_variation(together(model, PROMPTS[:2], (UNIT, UNIT), 3), expected) > 1e-2


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("most_rows", [4096, 40])
def test_greedy_texts_of_a_real_model_are_those_drawn_alone(most_rows, forward, monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_ROWS", most_rows)
    pair = ModelPair(tiny_llama(seed=0, layers=2, eos_token_id=7), forward=forward)
    prompts = [
        torch.randint(32, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        for length in (3, 9, 5, 6)
    ]
    decoder = build_decoder(pair, {"method": "autoregressive"})
    expected = [decoder.generate(prompt, max_new_tokens=20).tokens for prompt in prompts]
    some = [Trajectory(prompt, GREEDY, Randomness(0)) for prompt in prompts]
    assert [one.tokens for one in continuations(pair.target, some, 20)] == expected
    assert len({len(text) for text in expected}) > 1


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
def test_what_is_kept_is_what_a_pass_over_the_finished_text_says(forward):
    pair = ModelPair(tiny_llama(seed=0, layers=2).double(), tiny_llama(seed=1, layers=1).double(), forward=forward)
    some = [Trajectory(prompt, one, Randomness(3), []) for prompt in ([3, 1, 4], [1, 5]) for one in (GREEDY, UNIT)]
    for text in continuations(pair.target, some, 8, (1, 2)):
        read = walk(pair.target.open(16, (1, 2)), list(text.prompt), text.tokens[:-1]).rows()
        assert len(read) == len(text.said) == len(text.tokens) == 8
        for ours, theirs in zip(text.said, read, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
