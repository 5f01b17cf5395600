"""The adapter's cache, masks, positions and taps against cache-free forwards."""

from threading import Thread

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    NanoChatConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)

from runtime.causal_model import CausalLanguageModel
from tests.toys import tiny_llama

SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 8,
}


def random_model(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
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
    [Qwen2Config(**SIZES), Qwen3Config(**SIZES), MistralConfig(**SIZES), None],
    ids=lambda config: type(config).__name__,
)
def test_random_trees_and_commits_equal_cache_free_forwards(config, attention, forward):
    model = tiny_llama() if config is None else random_model(config)
    model.set_attn_implementation(attention)
    state = CausalLanguageModel(model, forward).open(max_length=8)  # grows on the way
    generator = torch.Generator().manual_seed(0)
    context = torch.randint(32, (5,), generator=generator).tolist()
    state.forward(context)
    state.keep(range(len(context)))
    contexts, parents = [], []  # of scratch nodes; the tail of a path that was kept stays among them
    for _ in range(12):
        for _call in range(2):  # a tree grown in two calls
            count = int(torch.randint(1, 5, (), generator=generator))
            tokens = torch.randint(32, (count,), generator=generator).tolist()
            new_parents = []
            for token in tokens:
                parent = int(torch.randint(-1, len(contexts), (), generator=generator)) if contexts else -1
                contexts.append([*(context if parent < 0 else contexts[parent]), token])
                new_parents.append(parent)
            parents += new_parents
            logits = state.forward(tokens, new_parents).logits
            expected = torch.stack([cache_free(model, item) for item in contexts[-count:]])
            torch.testing.assert_close(logits, expected, atol=2e-5, rtol=1e-4)
        leaf = int(torch.randint(len(contexts), (), generator=generator))
        path = []
        node = leaf
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        pending = int(torch.randint(len(path) + 1, (), generator=generator))
        state.keep(path, pending)
        if pending < len(path):
            context = contexts[path[len(path) - pending - 1]]
        contexts = [contexts[node] for node in path[len(path) - pending :]]
        parents = list(range(-1, pending - 1))


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


@pytest.mark.parametrize("forward", ["compact", "hugging_face"])
def test_keep_refuses_what_is_no_path(forward):
    state = CausalLanguageModel(tiny_llama(), forward).open(8)
    state.forward([1, 2, 3], [-1, -1, 0])
    with pytest.raises(AssertionError, match="no path"):
        state.keep([1, 2])


THREE = SIZES | {"num_hidden_layers": 3}
GPT = {"vocab_size": 32, "n_embd": 32, "n_layer": 3, "n_head": 4}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**THREE),
        GPTNeoXConfig(**THREE),
        GraniteConfig(
            **THREE, embedding_multiplier=3.0, logits_scaling=1.0
        ),  # its first block reads no plain embedding
        FalconConfig(vocab_size=32, hidden_size=32, num_hidden_layers=3, num_attention_heads=4),
        GPT2Config(**GPT),
        GPTJConfig(**GPT, rotary_dim=4),
        OPTConfig(**THREE, ffn_dim=48, word_embed_proj_dim=32),
        MptConfig(vocab_size=32, d_model=32, n_layers=3, n_heads=4),
        NanoChatConfig(  # its norm stands in front, too
            **THREE, bos_token_id=None, eos_token_id=None, pad_token_id=None, final_logit_softcapping=None
        ),
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
    config = OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=False)
    adapter = CausalLanguageModel(random_model(config))
    assert adapter.open(8).forward([1, 2]).logits.shape == (2, 32)
    with pytest.raises(ValueError, match="OPTForCausalLM has no .norm or .* to tap hidden states from"):
        adapter.open(8, (1,))


def test_contexts_are_bounded_by_whichever_name_the_configuration_has():
    config = MptConfig(vocab_size=32, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
    assert CausalLanguageModel(random_model(config)).context_limit == 64


def test_attention_without_tree_masks_is_refused():
    model = tiny_llama()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attn_implementation='sdpa'"):
        CausalLanguageModel(model)
