"""Passes that lose a number: nobody else sees it, whatever shape they have, and what a prompt lost is refused."""

import math

import pytest
import torch

from predictors.sampling import SamplingSettings
from runtime import ModelPair, Randomness, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.compact.batch import BatchWriter, Wanted
from runtime.laws import processed_law
from runtime.verification.outcome import likeliest
from tests.eagle3 import random_drafter
from tests.runtime.test_not_finite import METHODS
from tests.toys import tiny_llama

FORWARDS = ["compact", "packed", "graphed", "hugging_face"]
WAYS = {
    "tree": ([([5, 9, 6, 7], [-1, 0, 1, 0])], [False, True, True, False]),
    "siblings first": ([([9, 5, 6, 7], [-1, -1, 0, 1])], [True, False, True, False]),
    "chain": ([([5, 6, 9, 4], None)], [False, False, True, True]),
    "another pass": ([([5, 9], [-1, -1]), ([6, 7], [0, 1])], [False, True]),
}


@pytest.mark.parametrize("worth", [math.nan, math.inf])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", FORWARDS)
def test_a_lost_state_reaches_nobody_who_may_not_see_it(path, way, worth):
    models = tiny_llama(seed=0), tiny_llama(seed=0)
    with torch.no_grad():
        models[0].model.embed_tokens.weight[9, 3] = worth
    spoiled, sound = (CausalLanguageModel(model, path).open(32) for model in models)
    passes, lost = WAYS[way]
    for state in (spoiled, sound):
        state.forward([1, 2, 3])
        state.keep([0, 1, 2])
        for tokens, parents in passes:
            out = state.forward(tokens, parents)
        state.logits = out.logits
    assert spoiled.logits.isnan().all(dim=1).tolist() == lost
    others = [row for row, gone in enumerate(lost) if not gone]
    torch.testing.assert_close(spoiled.logits[others], sound.logits[others], atol=1e-6, rtol=1e-6)
    node = 0 if way != "siblings first" else 1
    for state in (spoiled, sound):  # and nobody who comes later, along a path without it
        state.keep([node])
        state.logits = state.forward([4]).logits
    torch.testing.assert_close(spoiled.logits, sound.logits, atol=1e-6, rtol=1e-6)


SPOILT = {  # of one layer, the coordinate of token 9 that only finite weights bring beyond what is finite
    "key": ("k_proj", torch.float32, 3e38),
    "value": ("v_proj", torch.float32, 3e38),
    "score": ("k_proj", torch.float32, 5e37),
    "turned": ("k_proj", torch.float16, 6e4),
    "query": ("q_proj", torch.float32, 3e38),
}


def overflowing(what, layer=0):
    """Token 9 has a coordinate of its own, and one matrix makes too much of it."""
    name, dtype, much = SPOILT[what]
    model = tiny_llama(seed=0).to(dtype)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 5] = 0.0
        model.model.embed_tokens.weight[9, 5] = 1.0
        getattr(model.model.layers[layer].self_attn, name).weight[:, 5] = much
    return model


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("path", ["compact", "packed", "graphed"])
def test_what_overflows_in_attention_is_lost_in_every_shape_of_pass(path, what):
    """And only there: as a token alone, in a chain, in a tree and in the prompt."""
    if (path, what) == ("packed", "turned"):
        pytest.skip("float16 has no packed product")
    state = CausalLanguageModel(overflowing(what), path).open(64)
    state.forward([1, 2, 3])
    state.keep([0, 1, 2])
    kept = {}
    for name, tokens, parents in (
        ("alone", [9], None),
        ("chain", [5, 9, 4], None),
        ("tree", [5, 9, 6, 4], [-1, -1, 0, 1]),
        ("sound", [5, 6], None),
    ):
        kept[name] = state.forward(tokens, parents).logits.float()
        state.keep([])
    assert [kept[name].isnan().all(dim=1).tolist() for name in kept] == [
        [True],
        [False, True, True],
        [False, True, False, True],
        [False, False],
    ]
    tolerance = 1e-2 if what == "turned" else 1e-5
    for name, rows in (("chain", [0]), ("tree", [0, 2])):
        torch.testing.assert_close(kept[name][rows], kept["sound"][: len(rows)], atol=tolerance, rtol=tolerance)
    with pytest.raises(ValueError, match="after the prompt"):
        build_decoder(ModelPair(overflowing(what), forward=path), {"method": "autoregressive"}).generate([1, 9, 3])


@pytest.mark.parametrize("heat", [1e-30, 0.3])
@pytest.mark.parametrize("scale", [1e10, 1e38])
def test_no_temperature_makes_an_infinity_of_finite_logits(heat, scale):
    logits = scale * torch.tensor([[1.0, 2.0, -3.0], [2.0, 2.0, 0.0]])
    law = processed_law(logits, SamplingSettings(heat))
    torch.testing.assert_close(law, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]))


@pytest.mark.parametrize("path", FORWARDS)
@pytest.mark.parametrize("method", ["plain", "chain block", "tree nss", "lookahead"])
def test_what_was_lost_in_the_prompt_is_refused(path, method):
    model = tiny_llama(seed=0)
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = math.nan
    decoder = build_decoder(
        ModelPair(model, tiny_llama(seed=1), forward=path), METHODS.get(method, {"method": "autoregressive"})
    )
    with pytest.raises(ValueError, match="not finite after the prompt"):
        decoder.generate([1, 9, 3], max_new_tokens=4)
    decoder.generate([1, 2, 3], max_new_tokens=1)  # other requests are served


@pytest.mark.parametrize("path", FORWARDS)
def test_a_draft_of_nothing_but_nan_drafts_nothing(path):
    draft = tiny_llama(seed=1)
    with torch.no_grad():
        draft.model.norm.weight[3] = math.nan
    decoders = [
        build_decoder(ModelPair(tiny_llama(seed=0), draft, forward=path), METHODS[name])
        for name in ("chain block", "tree nss")
    ]
    plain = tiny_llama(seed=0).generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    for decoder in decoders:
        made = decoder.generate([1, 2, 3], max_new_tokens=8, eos_token_id=[])
        assert made.tokens == plain[0, 3:].tolist()
        assert path == "graphed" or not any(record.drafted for record in made.rounds), "a graphed draft may not look"


def test_weights_that_overflow_in_half_precision_draft_nothing():
    draft = tiny_llama(seed=1)
    with torch.no_grad():
        draft.lm_head.weight.mul_(3e5)  # finite in float32, infinite logits in float16
    pair = ModelPair(tiny_llama(seed=0), draft.half())
    plain = build_decoder(pair, {"method": "autoregressive"})
    for name in ("chain block", "tree traversal", "branches match"):
        made = [one.generate([1, 2, 3], max_new_tokens=8).tokens for one in (build_decoder(pair, METHODS[name]), plain)]
        assert made[0] == made[1]


def test_many_texts_at_once_are_refused_with_their_names():
    model = tiny_llama(seed=0)
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = math.nan
    writer = BatchWriter(CausalLanguageModel(model, "compact").compact_weights(), 2, 32)
    wanted = [
        Wanted(name, prompt, 4, SamplingSettings(1.0), Randomness(0)) for name, prompt in (("a", [1]), ("b", [9]))
    ]
    with pytest.raises(ValueError, match="not finite.* b"):
        list(writer.write(wanted))


def test_the_most_likely_token_of_a_row_without_any():
    logits = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [math.inf, 0.0], [-math.inf] * 2, [-math.inf, 0.0]])
    assert likeliest(logits).tolist() == likeliest(logits.half()).tolist() == [1, -1, -1, -1, 1]


def test_a_drafter_that_reads_states_and_says_nothing():
    target = tiny_llama(seed=0)
    drafter = random_drafter(target)
    for place, weight in enumerate(("lm_head.weight", "fc.weight")):
        broken = random_drafter(target)
        assert weight in broken.tensors
        broken.tensors[weight][place] = math.nan
        decoders = [build_decoder(ModelPair(target, one), METHODS["chain block"]) for one in (broken, drafter)]
        made = [one.generate([1, 2, 3], max_new_tokens=12, eos_token_id=[]) for one in decoders]
        assert made[0].tokens == made[1].tokens
        assert not any(record.drafted for record in made[0].rounds) and any(record.drafted for record in made[1].rounds)
