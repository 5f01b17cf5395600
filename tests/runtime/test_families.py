"""Every family's cache, tree masks, taps and limits against its own cache-free forward, by each forward that serves it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, GPTNeoConfig, MptConfig, RwkvConfig

from runtime import ModelPair, build_decoder
from runtime.adapter import SCRATCH_ROOM
from runtime.causal_model import CausalLanguageModel, context_limit
from runtime.hugging_face import faults
from tests.families import COMPACT, FAMILIES, WINDOW, WINDOWED, family_model
from tests.toys import tiny_llama

LAYERS = (0, 1, 2)
SERVED = [
    (name, way) for name in FAMILIES for way in ("compact", "hugging_face") if way != "compact" or name in COMPACT
]
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@torch.no_grad()
def cache_free(model, context):
    """Logits [V] and tapped states [K, D] of the last token."""
    made = model(torch.tensor([context]), output_hidden_states=True)
    return made.logits[0, -1], torch.stack([made.hidden_states[layer][0, -1] for layer in LAYERS])


@pytest.mark.parametrize("family, forward", SERVED)
def test_trees_rollback_and_taps_equal_cache_free_forwards(family, forward):
    model = family_model(family)
    state = CausalLanguageModel(model, forward).open(8, LAYERS)  # grows on the way
    context, parents = [5, 9, 33, 2, 61, 7], [-1, -1, 0, 0, 2, 1]
    state.forward(context)
    state.keep(range(len(context)))
    for path in ([0, 2, 4], [1], []):  # no prefix of the scratch; then nothing is accepted
        tokens = [(11 * len(context) + 3 * node) % 64 for node in range(len(parents))]
        texts = []
        for token, parent in zip(tokens, parents, strict=True):
            texts.append([*(texts[parent] if parent >= 0 else context), token])
        made = state.forward(tokens, parents)
        expected = [cache_free(model, text) for text in texts]
        torch.testing.assert_close(made.logits, torch.stack([logits for logits, _ in expected]), atol=5e-5, rtol=1e-4)
        torch.testing.assert_close(
            made.hidden_NKD, torch.stack([states for _, states in expected]), atol=5e-5, rtol=1e-4
        )
        state.keep(path)
        context = texts[path[-1]] if path else context


@pytest.mark.parametrize("family, forward", SERVED + [(name, "packed") for name in COMPACT])
def test_greedy_text_equals_hugging_face_generate(family, forward):
    target, draft = family_model(family), family_model(family, noise=0.06)
    prompt = [5, 9, 33, 2]
    length = WINDOW - len(prompt)  # as long as the shortest window
    expected = target.generate(torch.tensor([prompt]), max_new_tokens=length, do_sample=False)[
        0, len(prompt) :
    ].tolist()
    assert len(set(expected)) > 3
    pair = ModelPair(target, draft, forward=forward)
    for drafter in ({"kind": "chain", "gamma": 3}, {"kind": "multi_candidate", "config": [2, 2, 1]}):
        decoder = build_decoder(pair, {"method": "speculative", "drafter": drafter, "verifier": "traversal"})
        assert decoder.generate(prompt, max_new_tokens=length).tokens == expected


@pytest.mark.parametrize("family", WINDOWED)
def test_contexts_beyond_the_window_are_refused_whichever_model_has_it(family):
    prompt, plain = [1] * (WINDOW - 4), family_model("llama")
    windowed = family_model(family)
    refused = f"do not fit the pair's context of {WINDOW}, the width of a sliding attention window. Shorten the prompt or pass"
    for pair in (ModelPair(windowed, plain), ModelPair(plain, windowed)):
        decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 2}})
        with pytest.raises(ValueError, match=refused):
            decoder.generate(prompt, max_new_tokens=5)
        assert len(decoder.generate(prompt, max_new_tokens=4).tokens) == 4


@pytest.mark.parametrize("family", WINDOWED)
def test_beyond_the_window_the_mask_would_be_another_one(family):
    """Power of the refusal: these models do not see all of a longer text."""
    model = family_model(family)
    state = CausalLanguageModel(model).open(2 * WINDOW)
    text = [(7 * place) % 64 for place in range(2 * WINDOW)]
    state.forward(text[:-2])
    state.keep(range(len(text) - 2))
    wrong = state.forward(text[-2:]).logits[-1]
    assert (wrong - cache_free(model, text)[0]).abs().max() > 1e-2


SCALED = {"rope_theta": 1e4, "factor": 3.0, "original_max_position_embeddings": 40}


@pytest.mark.parametrize(
    ("rotary", "limit"),
    [
        ({"rope_type": "yarn", **SCALED}, 120),
        ({"rope_type": "linear", **SCALED}, 120),
        ({"rope_type": "yarn", **SCALED, "factor": 0.5}, 40),  # never less than it was trained for
        (
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **SCALED},
            40,
        ),  # counts it in already
        ({"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}, 40),
        ({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}, 40),  # its angles change there
    ],
)
def test_a_context_is_what_rotary_angles_are_scaled_for(rotary, limit):
    model = tiny_llama(seed=0, max_position_embeddings=40, rope_parameters=rotary)
    for forward in ("auto", "hugging_face"):
        decoder = build_decoder(ModelPair(model, forward=forward), {"method": "autoregressive"})
        text = decoder.generate([1, 2, 3], max_new_tokens=limit - 3).tokens
        assert (
            text == model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=limit - 3, do_sample=False)[0, 3:].tolist()
        )
        with pytest.raises(ValueError, match=f"context of {limit}"):
            decoder.generate([1, 2, 3], max_new_tokens=limit - 2)


def test_angles_of_each_type_of_layers_are_looked_at():
    config = family_model("gemma3").config.get_text_config()
    config.layer_types, config.sliding_window = ["full_attention"] * config.num_hidden_layers, None
    config.rope_parameters = {
        "full_attention": {"rope_type": "yarn", **SCALED},
        "sliding_attention": {"rope_type": "default"},
    }
    config.max_position_embeddings = 100
    assert context_limit(config) == (120, "")
    config.rope_parameters["full_attention"] = {"rope_type": "longrope", "original_max_position_embeddings": 150}
    assert context_limit(config)[0] == 150 - SCRATCH_ROOM


def test_contexts_in_which_rotary_angles_change_are_refused():
    original = SCRATCH_ROOM + 32
    model = family_model(
        "phi3",
        rope_parameters={**LONGROPE, "original_max_position_embeddings": original},
        original_max_position_embeddings=original,
    )
    decoder = build_decoder(ModelPair(model), {"method": "autoregressive"})
    with pytest.raises(
        ValueError, match=f"context of 32, {SCRATCH_ROOM} short of where its rotary angles .longrope. change"
    ):
        decoder.generate([1] * 30, max_new_tokens=3)
    short, long = ([(7 * place) % 64 for place in range(count)] for count in (32, original + 20))
    for text, same in ((short, True), (long, False)):  # power: beyond it, keys in the cache have other angles
        state = CausalLanguageModel(model).open(len(text))
        for token in (text[: original // 8], text[original // 8 :]):
            logits = state.forward(token).logits[-1]
            state.keep(range(len(token)))
        assert torch.allclose(logits, cache_free(model, text)[0], atol=1e-4) == same


# ---- models whose own forward takes no mask, no positions or no cache from the caller: refused, or exact

VOCABULARY, LENGTH, BUDGET = 97, 20, 24
ENDS = {"bos_token_id": None, "eos_token_id": None}
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "initializer_range": 0.2, **ENDS}
BIASED = MptConfig(
    vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=256, initializer_range=0.2
)  # by rows of the cache
LOCAL = GPTNeoConfig(**SIZES, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4)  # windows of rows
MASKING = FalconConfig(
    **SIZES, num_hidden_layers=2, num_attention_heads=4, alibi=True, multi_query=False, parallel_attn=False
)
BLOOM = BloomConfig(**SIZES, n_layer=2, n_head=4)
RECURRENT = RwkvConfig(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, context_length=128, **ENDS
)
CHAIN = {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}}
TREE = {
    "method": "speculative",
    "drafter": {"kind": "multi_candidate", "config": [4, 2, 2, 1]},
    "verifier": "traversal",
}
ALONE, LOOKAHEAD = {"method": "autoregressive"}, {"method": "lookahead"}


def untuned_model(configuration, dtype=torch.float64):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configuration, dtype=dtype).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def greedy_texts(model, config):
    """By a decoder, and by Hugging Face."""
    pair = ModelPair(model, untuned_model(model.config))
    prompt = torch.randint(VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    ours = build_decoder(pair, config).generate(prompt, max_new_tokens=BUDGET, temperature=0.0).tokens
    return ours, model.generate(torch.tensor([prompt]), max_new_tokens=BUDGET, do_sample=False)[0, LENGTH:].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_that_are_served_have_no_fault(family, dtype):
    assert faults(family_model(family).to(dtype)) == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("configuration", "faulty"),
    [(BIASED, {False}), (LOCAL, {False}), (MASKING, {True, False}), (BLOOM, {True, False})],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_faults_are_found_in_any_number_format(configuration, faulty, dtype):
    assert faults(untuned_model(configuration, dtype)).keys() == faulty


@pytest.mark.parametrize(
    ("configuration", "config"),
    [(BIASED, ALONE), (BIASED, CHAIN), (LOCAL, CHAIN), (MASKING, ALONE), (BLOOM, ALONE)],
    ids=lambda value: getattr(value, "model_type", "") or value["method"],
)
def test_what_is_not_refused_is_exact(configuration, config):
    ours, theirs = greedy_texts(untuned_model(configuration), config)
    assert ours == theirs


@pytest.mark.parametrize(
    ("configuration", "config", "says"),
    [
        (BIASED, TREE, "MptForCausalLM computes other logits .* over a tree. Draft chains"),
        (LOCAL, LOOKAHEAD, "GPTNeoForCausalLM computes other logits .* over a tree. Draft chains"),
        (MASKING, CHAIN, "FalconForCausalLM fails .* several tokens at once"),
        (BLOOM, TREE, "BloomForCausalLM fails .* several tokens at once"),
        (RECURRENT, ALONE, "RwkvForCausalLM computes other logits .* with a cache of keys and values"),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_what_would_not_be_exact_is_refused(configuration, config, says):
    with pytest.raises(ValueError, match=says):
        greedy_texts(untuned_model(configuration), config)
