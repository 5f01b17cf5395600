import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from pipelines.inflation import InflatedShape, inflate

VOCABULARY = 61
SAME = {"hidden": 32, "layers": 2, "heads": 4, "head_dim": 8, "feed_forward": 48}
EVERYTHING = {"hidden": 96, "layers": 4, "heads": 32, "kv_heads": 8, "head_dim": 24, "feed_forward": 70, "vocab": 80}


@pytest.fixture(autouse=True)
def norms_in_their_own_dtype(monkeypatch):
    """Hugging Face computes norms in float32 whatever the dtype, which would hide errors below 1e-5."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


def small_model(kv_heads: int, tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.4,
        eos_token_id=None,
        rms_norm_eps=1e-3,
    )
    model = LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def enlarged(small: LlamaForCausalLM, vocab: int | None = None, **shape: int) -> LlamaForCausalLM:
    return inflate(small, InflatedShape(**shape), vocab)


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    tokens = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(tokens).logits


CHANGES = [
    {"layers": 5},
    {"feed_forward": 100},
    {"hidden": 128},
    {"hidden": 96},
    {"heads": 32, "kv_heads": 8},
    {"head_dim": 16},
    {"hidden": 64, "vocab": 80},
]


@pytest.mark.parametrize(
    ("change", "kv_heads", "tied"),
    [
        *((change, 2, True) for change in CHANGES),
        *((EVERYTHING, kv_heads, tied) for kv_heads in (4, 2, 1) for tied in (True, False)),
    ],
    ids=str,
)
def test_the_function_is_preserved(change, kv_heads, tied):
    small = small_model(kv_heads, tied)
    big = enlarged(small, **SAME | {"kv_heads": kv_heads} | change)
    expected, found = logits(small), logits(big)
    assert (found[..., :VOCABULARY] - expected).abs().max() < 1e-9
    assert found.softmax(-1)[..., VOCABULARY:].sum() < 1e-30


def test_an_unscaled_eps_is_caught():
    small = small_model(2, tied=True)
    big = enlarged(small, **EVERYTHING)
    for module in big.modules():
        if isinstance(module, LlamaRMSNorm):
            module.variance_epsilon = small.config.rms_norm_eps
    assert (logits(big)[..., :VOCABULARY] - logits(small)).abs().max() > 1e-3


def test_greedy_text_is_the_same_after_saving(tmp_path):
    small = small_model(2, tied=True).float()
    enlarged(small, **EVERYTHING).save_pretrained(tmp_path)
    big = LlamaForCausalLM.from_pretrained(tmp_path)
    prompt = torch.tensor([[5, 9, 2]])
    settings = {"max_new_tokens": 48, "do_sample": False, "attention_mask": torch.ones_like(prompt), "pad_token_id": 0}
    assert small.generate(prompt, **settings).tolist() == big.generate(prompt, **settings).tolist()


def test_the_last_hidden_states_are_the_small_models():
    small = small_model(4, tied=True)
    big = enlarged(small, **SAME | {"kv_heads": 4, "hidden": 64, "layers": 5})
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        states = small(tokens, output_hidden_states=True).hidden_states
        big_states = big(tokens, output_hidden_states=True).hidden_states
    for own, inflated in zip(states[:-1], big_states[3:-1], strict=True):
        assert (inflated[..., :32] - own).abs().max() < 1e-9
        assert inflated[..., 32:].abs().max() == 0


def test_weights_that_cannot_matter_are_random_and_seeded():
    small = small_model(4, tied=True)
    one, two = (enlarged(small, **SAME | {"kv_heads": 4, "layers": 3}) for _ in range(2))
    weights = [model.model.layers[0].mlp.gate_proj.weight for model in (one, two)]
    assert torch.equal(*weights) and weights[0].std() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 16}, "hidden 16 is below 32"),
        ({"heads": 6, "kv_heads": 4}, "no multiple"),
        ({"head_dim": 12}, "head_dim 12 is no multiple of 8"),
        ({"vocab": 80}, "needs a larger hidden"),
    ],
)
def test_shapes_that_cannot_hold_the_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        enlarged(small_model(4, tied=True), **SAME | {"kv_heads": 4} | change)


def test_a_larger_vocabulary_is_refused_in_float16():
    with pytest.raises(ValueError, match="float16"):
        enlarged(small_model(4, tied=True).half(), **SAME | {"kv_heads": 4, "hidden": 64, "vocab": 80})
