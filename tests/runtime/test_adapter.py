"""The adapter's cache, masks, positions and taps against cache-free forwards."""

from random import Random
from threading import Thread

import pytest
import torch
import transformers as hf

from runtime.audit.tables import TableState
from runtime.causal_model import CausalLanguageModel
from tests.ancestral import LlamaLogits
from tests.families import HEADS
from tests.families import SIZES as TINY
from tests.runtime.walks import walk
from tests.toys import tiny_llama

SIZES = {**TINY, **HEADS, "vocab_size": 32, "num_hidden_layers": 2}


def random_model(config):
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval()


@torch.no_grad()
def cache_free(model, context):
    return model(torch.tensor([context])).logits[0, -1]


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "config",
    [hf.Qwen2Config(**SIZES), hf.Qwen3Config(**SIZES), hf.MistralConfig(**SIZES), None],
    ids=lambda config: type(config).__name__,
)
def test_random_trees_and_commits_equal_cache_free_forwards(config, attention, forward):
    model = tiny_llama() if config is None else random_model(config)
    model.set_attn_implementation(attention)
    state = CausalLanguageModel(model, forward).open(max_length=8)  # grows on the way
    walk([state, TableState(LlamaLogits(model))], Random(0), vocabulary=32, rounds=5, tolerance=1e-4)


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
def test_stale_scratch_would_be_noticed(forward):
    """Power of the test above: forgetting to drop a rejected row changes the logits."""
    model = tiny_llama()
    state = CausalLanguageModel(model, forward).open(max_length=8)
    state.forward([1, 2, 3])
    state.keep(range(3))
    state.forward([4])
    state.keep([0])  # a rejected token kept by mistake
    wrong = state.forward([5]).logits[-1]
    assert (wrong - cache_free(model, [1, 2, 3, 5])).abs().max() > 1e-2


THREE = SIZES | {"num_hidden_layers": 3}
GPT = {"vocab_size": 32, "n_embd": 32, "n_layer": 3, "n_head": 4}


@pytest.mark.parametrize(
    "config",
    [
        hf.LlamaConfig(**THREE),
        hf.GPTNeoXConfig(**THREE),
        hf.GraniteConfig(
            **THREE, embedding_multiplier=3.0, logits_scaling=1.0
        ),  # its first block reads no plain embedding
        hf.FalconConfig(vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=4),
        hf.GPT2Config(**GPT),
        hf.GPTJConfig(**GPT, rotary_dim=4),
        hf.OPTConfig(**THREE, ffn_dim=48, word_embed_proj_dim=32),
        hf.MptConfig(vocab_size=32, d_model=32, n_layers=3, n_heads=4),
        hf.NanoChatConfig(**THREE, final_logit_softcapping=None),  # its norm stands in front, too
    ],
    ids=lambda config: config.model_type,
)
def test_taps_equal_output_hidden_states_bit_for_bit(config):
    model, layers = random_model(config), (0, 1, 2, 3)
    hidden = CausalLanguageModel(model, "hugging_face").open(8, layers).forward([1, 2, 3, 4]).hidden_NKD
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 3, 4]]), output_hidden_states=True).hidden_states
    for index, layer in enumerate(layers):
        assert torch.equal(hidden[:, index], expected[layer][0])
    with torch.no_grad():
        assert torch.equal(
            model.get_output_embeddings()(hidden[:, 3]), model(torch.tensor([[1, 2, 3, 4]])).logits[0]
        )  # post-norm


def test_taps_are_of_the_threads_own_pass():
    adapter = CausalLanguageModel(tiny_llama(layers=3), "hugging_face")
    layers, texts, found = (0, 1, 2, 3), [[1, 2, 3, 4], [5, 6]], []
    expected = [adapter.open(8, layers).forward(text).hidden_NKD for text in texts]

    def meanwhile(*_):
        handle.remove()
        other = Thread(target=lambda: found.append(adapter.open(8, layers).forward(texts[1]).hidden_NKD))
        other.start()
        other.join()

    handle = adapter.model.model.layers[1].register_forward_hook(meanwhile)
    own = adapter.open(8, layers).forward(texts[0]).hidden_NKD
    assert torch.equal(own, expected[0]) and torch.equal(found[0], expected[1])


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
def test_bad_taps_are_refused(forward):
    adapter = CausalLanguageModel(tiny_llama(layers=2), forward)
    with pytest.raises(ValueError, match="layer 3 does not exist.*0 to 2"):
        adapter.open(8, (1, 3))
    with pytest.raises(ValueError, match="ascend"):
        adapter.open(8, (2, 1))


def test_models_without_a_norm_behind_their_blocks_decode_but_cannot_be_tapped():
    config = hf.OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=False)
    adapter = CausalLanguageModel(random_model(config))
    assert adapter.open(8).forward([1, 2]).logits.shape == (2, 32)
    with pytest.raises(ValueError, match="OPTForCausalLM has no .norm or .* to tap hidden states from"):
        adapter.open(8, (1,))


def test_contexts_are_bounded_by_whichever_name_the_configuration_has():
    config = hf.MptConfig(vocab_size=32, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
    assert CausalLanguageModel(random_model(config)).context_limit == 64


def test_attention_without_tree_masks_is_refused():
    model = tiny_llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        CausalLanguageModel(model)
