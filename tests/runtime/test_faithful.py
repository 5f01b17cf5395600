"""Models whose own forward takes no mask, no positions or no cache from the caller: what is refused, and what is exact."""

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, GPTNeoConfig, MptConfig, RwkvConfig

from runtime import ModelPair, build_decoder
from runtime.hugging_face import faults
from tests.families import FAMILIES, family_model

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


def random_model(configuration, dtype=torch.float64):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configuration, dtype=dtype).eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def greedy_texts(model, config):
    """By a decoder, and by Hugging Face."""
    pair = ModelPair(model, random_model(model.config))
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
    assert faults(random_model(configuration, dtype)).keys() == faulty


@pytest.mark.parametrize(
    ("configuration", "config"),
    [(BIASED, ALONE), (BIASED, CHAIN), (LOCAL, CHAIN), (MASKING, ALONE), (BLOOM, ALONE)],
    ids=lambda value: getattr(value, "model_type", "") or value["method"],
)
def test_what_is_not_refused_is_exact(configuration, config):
    ours, theirs = greedy_texts(random_model(configuration), config)
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
        greedy_texts(random_model(configuration), config)
