"""The compact forward against Hugging Face's own: logits, taps, and weights that are shared, not copied."""

from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from runtime import ModelPair, build_decoder
from runtime.causal_model import CausalLanguageModel
from runtime.compact.applicable import NotCompactError
from runtime.compact.forward import signed
from runtime.compact.weights import unpackable
from runtime.identity import pair_identity
from runtime.memory import weight_bytes
from tests.families import HEADS, LLAMA3
from tests.families import SIZES as TINY
from tests.runtime.walks import walk
from tests.toys import tiny_llama

TOLERANCE = 1e-5
SIZES = {**TINY, **HEADS, "vocab_size": 64, "num_hidden_layers": 3, "max_position_embeddings": 2048}
BFLOAT16 = pytest.mark.skipif(
    unpackable(torch.empty(0, dtype=torch.bfloat16)) is not None, reason="this processor has no packed bfloat16"
)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 1024}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "llama-mha-tied": LlamaConfig(**{**SIZES, "num_key_value_heads": 4}, tie_word_embeddings=True),
    "llama-mqa-biased": LlamaConfig(**{**SIZES, "num_key_value_heads": 1}, attention_bias=True, mlp_bias=True),
    "llama-gelu-epsilon": LlamaConfig(**SIZES, hidden_act="gelu", rms_norm_eps=1e-2),
    "llama-wide-heads": LlamaConfig(**{**SIZES, "head_dim": 16}),
    "llama-3-angles": LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, sliding_window=1500),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-yarn": Qwen2Config(**SIZES, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SIZES),
}


def random_model(config, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(1 + 0.3 * noise if "norm" in name else 0.15 * noise)  # biases and norms that matter
    return model.eval()


def both(config, layers=(), forward="compact"):
    """States of one model over two forwards."""
    model = random_model(config)
    return [CausalLanguageModel(model, path).open(16, layers) for path in (forward, "hugging_face")]


@pytest.mark.parametrize("forward", ["compact", "packed"])
@pytest.mark.parametrize("name", CONFIGS)
def test_random_walks_equal_hugging_face(name, forward):
    """After a short prompt, and after one by which the state grows."""
    for prompt in (7, 1200):
        walk(both(CONFIGS[name], (0, 1, 3), forward), Random(prompt), 64, prompt=prompt)


def test_a_rotation_with_unsigned_sines_would_be_noticed(monkeypatch):
    """Power of the comparison: angles turned the wrong way."""
    monkeypatch.setattr("runtime.compact.state.signed", lambda sin: -signed(sin))
    with pytest.raises(AssertionError, match="not close"):
        walk(both(CONFIGS["llama"]), Random(0), 64)


@pytest.mark.parametrize("name", ["llama", "llama-mha-tied", "qwen2"])  # a key head per query head: lone rows; biases
@pytest.mark.parametrize("ours", ["compact", pytest.param("packed", marks=BFLOAT16)])
def test_bfloat16_stays_near_hugging_face(name, ours):
    model = random_model(CONFIGS[name]).bfloat16()
    exact = random_model(CONFIGS[name])
    tokens = list(range(20))
    with torch.no_grad():
        reference = exact(torch.tensor([tokens])).logits[0]
    errors = {}
    for forward in (ours, "hugging_face"):
        state = CausalLanguageModel(model, forward).open(20)
        logits = torch.cat([state.forward(tokens[:9]).logits, *(state.forward([t]).logits for t in tokens[9:])])
        errors[forward] = (logits.float() - reference).abs().mean()
    assert errors[ours] < 1.5 * errors["hugging_face"]


@pytest.mark.parametrize(("asked", "forward"), [("compact", "compact"), ("auto", "packed")])
def test_weights_are_shared_with_the_model_and_follow_it(tmp_path, asked, forward):
    model = random_model(CONFIGS["qwen2"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = CausalLanguageModel(model, asked)
    assert adapter.forward == forward and adapter.whole
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])

    def logits():
        with torch.no_grad():
            expected = model(torch.tensor([[1, 2, 3]])).logits[0]
        return adapter.open(8).forward([1, 2, 3]).logits, expected

    model.save_pretrained(tmp_path)  # views are saved as the parameters they are
    reloaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in reloaded.state_dict().items())
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight.mul_(3.0)  # changed in place
    torch.testing.assert_close(*logits(), atol=TOLERANCE, rtol=0)
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.randn(48, 32))  # replaced
    torch.testing.assert_close(*logits(), atol=TOLERANCE, rtol=0)
    model.double()
    compact, expected = logits()
    assert compact.dtype == torch.float64 and adapter.forward == "compact", "there is no packed float64"
    torch.testing.assert_close(compact, expected, atol=1e-5, rtol=0)  # Hugging Face's norms compute in float32
    for parameter in model.parameters():
        assert parameter.requires_grad and not parameter.is_inference()  # training goes on


def test_joining_twice_shares_what_was_joined():
    model = random_model(CONFIGS["llama"])
    first, second = (CausalLanguageModel(model, "compact") for _ in range(2))
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    state = first.open(8)
    second.open(8), first.open(8)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight.mul_(3.0)
        expected = model(torch.tensor([[1, 2, 3]])).logits[0]
    for each in (state, first.open(8), second.open(8)):
        torch.testing.assert_close(each.forward([1, 2, 3]).logits, expected, atol=TOLERANCE, rtol=0)


def test_a_model_joined_in_inference_mode_can_still_be_trained():
    model = tiny_llama()
    with torch.inference_mode():
        assert CausalLanguageModel(model).forward == "packed"
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_what_cannot_be_packed_is_refused_with_the_reason():
    with pytest.raises(NotCompactError, match="float64 has no packed product.*forward='compact'"):
        CausalLanguageModel(random_model(CONFIGS["llama"]).double(), "packed")
    assert "they are on meta" in unpackable(torch.empty(4, 4, device="meta"))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=BFLOAT16)])
@pytest.mark.parametrize("name", ["llama", "llama-mha-tied", "qwen2"])
def test_what_load_packs_it_lets_go(tmp_path, name, dtype):
    """Decoding and identity stay; whatever needs the matrices is refused by name, before it computes nonsense."""
    random_model(CONFIGS[name]).save_pretrained(tmp_path)
    loaded, whole = (ModelPair.load(tmp_path, device="cpu", dtype=dtype, whole=keep) for keep in (False, True))
    assert (loaded.target.forward, loaded.target.whole, whole.target.whole) == ("packed", False, True)
    ours, theirs = (pair.target.open(8).forward([1, 2, 3]).logits for pair in (loaded, whole))
    assert torch.equal(ours, theirs) and pair_identity(loaded, ()) == pair_identity(whole, ())
    model, ids = loaded.target.model, torch.tensor([[1, 2, 3]])
    tied = "tied" in name
    held = sum(one.nbytes for one in (*whole.target.model.parameters(), *whole.target.model.buffers()))
    assert weight_bytes(loaded.target) == held + tied * model.lm_head.weight.nbytes
    assert weight_bytes(whole.target) == held + whole.target.packed_bytes
    decoder = build_decoder(loaded, {"method": "autoregressive"})
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    made = model.generate(ids, custom_generate=decoder, **options)
    assert made[0, 3:].tolist() == decoder.generate([1, 2, 3], max_new_tokens=8).tokens
    for call in (
        lambda: model(ids),
        lambda: model.generate(ids, **options),
        lambda: model.model.layers[1](torch.zeros(1, 3, 32)),
        lambda: ModelPair(model),
        lambda: ModelPair(loaded.target, loaded.target),
        lambda: CausalLanguageModel(model, "hugging_face"),
    ):
        with pytest.raises(ValueError, match="let go once they were packed.*whole=True"):
            call()
    with torch.no_grad():
        model.model.norm.weight.mul_(2.0)
    with pytest.raises(ValueError, match="was changed since it was loaded.*whole=True"):
        loaded.target.open(8)
