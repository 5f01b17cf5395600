"""Texts written side by side are those that each prompt gets alone."""

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness
from runtime.compact.batch import BatchWriter, Wanted
from runtime.laws import processed_law
from tests.ancestral import LlamaLogits
from tests.greedy import greedy_text
from tests.toys import tiny_llama

PROMPTS = [[5, 1, 7, 7], [3], [9, 8, 2, 1, 1, 4, 30], [11, 12], [4, 4]]


def written(model, settings, slots, layers=(), eos=frozenset(), length=12):
    weights = ModelPair(model, forward="compact").target._compact()
    writer = BatchWriter(weights, slots, 32, layers, eos)
    texts = [Wanted(place, prompt, length, settings, Randomness(place)) for place, prompt in enumerate(PROMPTS)]
    return {one.wanted.name: one for one in writer.write(texts)}


@pytest.mark.parametrize("slots", [2, 5, 8])
def test_greedy_texts_are_the_models_own(slots):
    model = tiny_llama(seed=4)
    found = written(model, SamplingSettings(0.0), slots)
    assert {name: one.tokens for name, one in found.items()} == {
        place: greedy_text(model, prompt, 12) for place, prompt in enumerate(PROMPTS)
    }


def test_a_text_draws_as_it_does_alone():
    model, settings = tiny_llama(seed=4), SamplingSettings(0.8, top_k=5)
    for place, one in written(model, settings, 3).items():
        text, chance = list(PROMPTS[place]), Randomness(place)
        for _ in range(12):
            text.append(int(chance.categorical(processed_law(LlamaLogits(model).logits(text), settings))))
        assert one.tokens == text[-12:]


def test_states_are_those_of_the_text():
    model = tiny_llama(seed=4, layers=3)
    for place, one in written(model, SamplingSettings(1.0), 3, layers=(0, 2, 3)).items():
        with torch.no_grad():
            text = torch.tensor([[*PROMPTS[place], *one.tokens[:-1]]])
            states = model(text, output_hidden_states=True).hidden_states
        expected = torch.stack([states[layer][0] for layer in (0, 2, 3)], dim=1)
        torch.testing.assert_close(one.hidden_NKC, expected, atol=2e-5, rtol=1e-4)


def test_a_text_ends_with_its_end_and_makes_room():
    model = tiny_llama(seed=4)
    texts = {place: greedy_text(model, prompt, 12) for place, prompt in enumerate(PROMPTS)}
    end = texts[0][4]
    found = written(model, SamplingSettings(0.0), 2, eos=frozenset({end}))
    for place, text in texts.items():
        cut = text[: text.index(end) + 1] if end in text else text
        assert found[place].tokens == cut


def test_what_does_not_fit_a_slot_is_refused():
    with pytest.raises(ValueError, match="40 new ones are more than the 32 rows"):
        written(tiny_llama(seed=4), SamplingSettings(0.0), 2, length=40)
