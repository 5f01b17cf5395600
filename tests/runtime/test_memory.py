"""What a request is planned to hold, against what it really holds; and what happens where there is no memory."""

import re
from itertools import chain

import pytest
import torch
from transformers import AutoModelForCausalLM, FalconConfig, GPT2Config, OPTConfig

from runtime import ModelPair, Randomness, build_decoder
from runtime.audit.tables import TableModel
from runtime.memory import LIBRARY, Work, model_memory, planned_memory, unloaded_pair
from tests.eagle3 import random_drafter
from tests.held import Held
from tests.toys import tiny_llama

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


# ---- no memory: a prompt is read in two halves, once, and a later pass ends the request

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
