"""What a request holds, against what it really holds."""

from itertools import chain

import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, OPTConfig

from runtime import ModelPair, Randomness, build_decoder
from runtime.memory import LIBRARY, Work, model_memory, planned_memory, unloaded_pair
from tests.eagle3 import random_drafter
from tests.held import Held
from tests.toys import TableModel, tiny_llama

DEVICE = {"graphed": "cuda", "compact": "cpu", "hugging_face": "cpu"}


@pytest.mark.parametrize("tied", [False, True])
def test_weights_and_cache_are_those_of_a_request(tied):
    models = [tiny_llama(64, seed=seed, layers=3, tie_word_embeddings=tied) for seed in (0, 1)]
    pair = ModelPair(*models, forward="graphed")
    planned = planned_memory(pair, prompt_tokens=40, max_new_tokens=100)
    for name, model in (("target", pair.target), ("draft", pair.draft)):
        parameters = 4 * sum(parameter.numel() for parameter in model.model.parameters())  # a shared one counts once
        buffers = 4 * sum(buffer.numel() for buffer in model.model.buffers())
        assert planned[name].weights == parameters + buffers
        memory = model.open(140).memory
        held = sum(part.nbytes for part in (*chain.from_iterable(memory.caches), memory.cos, memory.sin))
        assert planned[name].cache == held


def test_workspace_grows_with_the_prompt_and_the_vocabulary():
    def workspace(vocabulary, prompt):
        return planned_memory(ModelPair(tiny_llama(vocabulary)), prompt, 8)["target"].workspace

    assert workspace(64, 2000) == 10 * workspace(64, 200) > workspace(64, 1)
    assert workspace(640, 1) == 10 * workspace(64, 1)


def test_models_of_unknown_memory_are_refused():
    with pytest.raises(ValueError, match="target is a TableModel"):
        planned_memory(ModelPair(TableModel(5, seed=0)), 8, 8)


@pytest.mark.parametrize("forward", ["graphed", "compact", "hugging_face"])
def test_a_model_without_memory_is_planned_as_the_one_it_stands_for(forward):
    """Graphed passes round rows up, and only a CUDA device records by itself; bare Hugging Face has no tables of angles."""
    real = ModelPair(tiny_llama(64, layers=3), forward=forward).target
    meta = ModelPair(tiny_llama(64, layers=3).to("meta"), forward="auto" if forward == "graphed" else forward).target
    held = model_memory("real", real, Work(140, 40))
    planned = model_memory("meta", meta, Work(140, 40), DEVICE[forward])
    assert (planned.weights, planned.cache) == (held.weights, held.cache)
    assert planned.workspace - held.workspace == (LIBRARY if DEVICE[forward] == "cuda" else 0)


def test_a_drafter_is_planned_by_its_configuration_as_it_is_held():
    target = tiny_llama(640, layers=3, hidden=64)
    drafter = random_drafter(target, ids=range(0, 640, 2))
    pair = ModelPair(target, drafter)
    given = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 320}
    given |= {"eagle_aux_hidden_state_layer_ids": list(drafter.layers)}
    meta = unloaded_pair(torch.float32, target.config, drafter.config.to_dict() | given)
    held, planned = (model_memory("draft", one.draft, Work(224, 200), "cpu") for one in (pair, meta))
    assert planned == held
    state = pair.draft.open(224)
    assert held.cache == sum(part.nbytes for part in (*state.memory.tensors, state.memory.cos, state.memory.sin))
    own = 4 * drafter.num_parameters
    assert 2 * own <= held.weights < 2 * own + 10_000, "its files, and what is served"
    assert model_memory("draft", meta.draft, Work(224, 200), "cuda").weights == own
    decoder = build_decoder(pair, {"method": "speculative", "drafter": {"kind": "chain", "gamma": 4}})
    options = {"max_new_tokens": 24, "temperature": 1.0, "randomness": Randomness(0), "eos_token_id": []}
    with Held() as peak:
        decoder.generate(list(range(200)), **options)
    whole = planned_memory(pair, 200, 24, "cpu").values()
    assert sum(one.cache + one.workspace for one in whole) == pytest.approx(peak.peak, rel=0.1)


@pytest.mark.parametrize(
    ("configuration", "inner"),
    [
        (GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4), 128),
        (GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_inner=48), 48),
        (OPTConfig(vocab_size=64, hidden_size=32, ffn_dim=80, num_hidden_layers=2, num_attention_heads=4), 80),
        (FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4), 128),
    ],
    ids=["gpt2", "gpt2-inner", "opt", "falcon"],
)
def test_families_call_their_widest_layer_otherwise(configuration, inner):
    model = ModelPair(AutoModelForCausalLM.from_config(configuration)).target
    planned = model_memory("target", model, Work(2000, 2000))
    assert planned.weights >= 4 * sum(parameter.numel() for parameter in model.model.parameters())
    assert planned.workspace == 2000 * 4 * (3 * inner + 2 * 32 + 32)
