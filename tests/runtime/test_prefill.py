"""A prompt whose pass finds no memory is read in two halves, once; nothing else changes. A later pass ends the request."""

import re

import pytest
import torch

from runtime import ModelPair, build_decoder
from tests.toys import tiny_llama

PROMPT = [1, 5, 9, 2, 7, 3, 8, 4, 6]


def short_of_memory(model, most: int) -> None:
    """Its passes over more than ``most`` tokens ask a layer in their middle for more memory than there is."""

    def ask(module, args, output):
        if output.shape[-2] > most:
            torch.empty(1 << 55)

    model.model.norm.register_forward_hook(ask)


@pytest.fixture
def pair():
    models = tiny_llama(), tiny_llama(layers=1)
    return ModelPair(*models, forward="hugging_face")


@pytest.mark.parametrize(
    "config", [{"method": "autoregressive"}, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}}]
)
@pytest.mark.parametrize("side", ["target", "draft"])
def test_two_halves_go_on_where_one_pass_finds_no_memory(pair, config, side):
    decoder = build_decoder(pair, config)
    expected = decoder.generate(PROMPT, max_new_tokens=12)
    used = [side] if side == "target" or "drafter" in config else []
    short_of_memory(getattr(pair, side).model, 5)
    if not used:
        assert decoder.generate(PROMPT, max_new_tokens=12).tokens == expected.tokens
        return
    with pytest.warns(UserWarning, match="no memory for 9 tokens at once") as said:
        found = decoder.generate(PROMPT, max_new_tokens=12)
    assert len(said) == 1 and found.tokens == expected.tokens
    assert [one.accepted for one in found.rounds] == [one.accepted for one in expected.rounds]


@pytest.mark.parametrize(("prompt", "tokens"), [(PROMPT, 5), ([3], 1)])
def test_halves_without_memory_are_refused_with_the_remedy(pair, prompt, tokens):
    decoder = build_decoder(pair, {"method": "autoregressive"})
    decoder.generate(prompt, max_new_tokens=2)  # the model has been tried
    short_of_memory(pair.target.model, 0)
    with pytest.raises(MemoryError, match=re.escape(f"a pass over {tokens} tokens of the prompt") + ".*shorten"):
        decoder.generate(prompt, max_new_tokens=2)


@pytest.mark.parametrize(
    "config",
    [
        {"method": "speculative", "drafter": {"kind": "chain", "gamma": 3}},
        {"preset": "pearl", "gamma": 2, "overlap": "none"},
        {"method": "progressive_tree"},
    ],
)
def test_a_round_without_memory_ends_the_request_and_the_next_one_decodes(pair, config):
    decoder = build_decoder(pair, config)
    expected = decoder.generate(PROMPT, max_new_tokens=12)
    full = {"now": False}

    def ask(module, args, output):
        if full["now"]:
            torch.empty(1 << 55)

    pair.target.model.model.norm.register_forward_hook(ask)
    steps = decoder.stream(PROMPT, max_new_tokens=12)
    context = len(PROMPT) + sum(len(next(steps).tokens) for _ in range(2))
    full["now"] = True
    with pytest.raises(MemoryError, match=rf"round at {context} tokens of context.*max_new_tokens"):
        next(steps)
    full["now"] = False
    assert decoder.generate(PROMPT, max_new_tokens=12).tokens == expected.tokens


def test_other_errors_stay_what_they_are(pair):
    def fail(module, args, output):
        raise RuntimeError("something else")

    pair.target.model.model.norm.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="something else"):
        build_decoder(pair, {"method": "autoregressive"}).generate(PROMPT, max_new_tokens=2)
