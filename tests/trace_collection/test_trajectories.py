"""Texts that are drawn together: each has the law of a text drawn alone, whatever is drawn beside it."""

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from tests.toys import TableModel, enumerate_outcomes, tiny_llama, total_variation
from trace_collection import trajectories
from trace_collection.trajectories import Trajectory, continuations

PROMPTS = [[0, 1], [2], [1, 1, 0]]


def ending(vocabulary, seed):
    model = TableModel(vocabulary, seed=seed)
    model.eos_tokens = frozenset({2})
    return model


def law_of(run):
    law = {}
    for outcome, probability in enumerate_outcomes(run):
        law[outcome] = law.get(outcome, 0.0) + probability
    return law


def together(model, prompts, settings, budget):
    def run(chance):
        some = [Trajectory(prompt, chance) for prompt in prompts]
        return tuple(tuple(text) for text in continuations(model, some, settings, budget))

    return law_of(run)


def alone(model, prompts, settings, budget):
    decoder = build_decoder(ModelPair(model), {"method": "autoregressive"})
    options = {"temperature": settings.temperature, "top_k": settings.top_k, "max_new_tokens": budget}

    def run(chance):
        return tuple(tuple(decoder.generate(prompt, randomness=chance, **options).tokens) for prompt in prompts)

    return law_of(run)


@pytest.mark.parametrize("settings", [SamplingSettings(1.0), SamplingSettings(0.7, top_k=2)], ids=str)
@pytest.mark.parametrize("most_rows", [4096, 7])
def test_texts_drawn_together_are_independent_texts(settings, most_rows, monkeypatch):
    monkeypatch.setattr(trajectories, "MOST_ROWS", most_rows)
    model = ending(3, seed=1)
    found, expected = (law(model, PROMPTS[:2], settings, 3) for law in (together, alone))
    assert len(expected) > 20 and total_variation(found, expected) < 1e-9
    assert any(len(text) < 3 for texts in expected for text in texts), "a text ends at its end of sequence"


def test_a_text_that_goes_on_from_another_is_found_out():
    """The wrong twin: all nodes hang under the first text's newest."""
    model = ending(3, seed=1)
    expected = alone(model, PROMPTS[:2], SamplingSettings(1.0), 3)
    opened = model.open

    def wrong(*given):
        state = opened(*given)
        right = state.forward
        state.forward = lambda tokens, parents, last=None: right(
            tokens, parents if last else [parents[0]] * len(parents), last
        )
        return state

    model.open = wrong
    assert total_variation(together(model, PROMPTS[:2], SamplingSettings(1.0), 3), expected) > 1e-2


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
    some = [Trajectory(prompt, Randomness(0)) for prompt in prompts]
    assert list(continuations(pair.target, some, SamplingSettings(0.0), 20)) == expected
    assert len({len(text) for text in expected}) > 1
