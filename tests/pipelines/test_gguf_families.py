"""GGUF files of several quantisations, families and rotary angles: what is made of them computes what the file holds."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, RopeScalingType
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pipelines.gguf_file import convert
from tests.pipelines.test_gguf_file import FIELDS, TOKENS

OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"} | {
    f"self_attn.{one}_norm": f"attn_{one}_norm" for one in "qk"
}
INNER |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
INNER |= {f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")}
SIZES = {
    "vocab_size": len(TOKENS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "initializer_range": 0.2,
}
SIZES |= {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA_3 |= {"original_max_position_embeddings": 8192}


def llama(**changes) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES | changes))


def paired(weight: np.ndarray, rows: int) -> np.ndarray:
    """As llama.cpp has a Llama's queries and keys: the halves of every head in turn."""
    return np.ascontiguousarray(
        weight.reshape(-1, 2, rows // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


@torch.no_grad()
def written(path: Path, model, kind=Kind.Q8_0, rope_freqs=None, **fields) -> Path:
    """The model in a GGUF file; its own weights become what the file holds, in bfloat16."""
    config, family = model.config, model.config.model_type
    head, writer = model.model.layers[0].self_attn.head_dim, GGUFWriter(path, model.config.model_type)
    own = FIELDS | {"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size}
    own |= {"head_count": 4, "head_count_kv": 2, "rope_dimension_count": head, "key_length": head, "value_length": head}
    own |= {"layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": config.rope_parameters["rope_theta"]}
    for name, value in (own | fields).items():
        getattr(writer, f"add_{name}")(value)
    for name, parameter in model.named_parameters():
        module, _, suffix = name.rpartition(".")
        block = module.split(".")[2:]
        place = OUTER.get(module) or f"blk.{block[0]}.{INNER['.'.join(block[1:])]}"
        if parameter.ndim == 1 or "norm" in module:
            parameter.normal_(1.0, 0.1)
            writer.add_tensor(f"{place}.{suffix}", parameter.numpy())
        else:
            held = gguf.quantize(parameter.numpy(), kind)
            parameter.copy_(torch.from_numpy(gguf.dequantize(held, kind)))
            turned = family == "llama" and place.endswith(("attn_q", "attn_k"))
            writer.add_tensor(f"{place}.{suffix}", paired(held, head) if turned else held, raw_dtype=kind)
        parameter.data = parameter.data.bfloat16().float()
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_freqs, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def require_same(tmp_path, model, **options) -> None:
    convert(written(tmp_path / "m.gguf", model, **options), tmp_path / "made")
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype=torch.float32)
    tokens = torch.arange(60)[None]
    torch.testing.assert_close(made(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q5_1, Kind.Q8_0], ids=lambda kind: kind.name)
def test_quantisations(tmp_path, kind):
    require_same(tmp_path, llama(tie_word_embeddings=kind is Kind.Q4_0), kind=kind)


FAMILIES = [
    Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    Qwen2ForCausalLM(Qwen2Config(**SIZES | {"tie_word_embeddings": False})),
    Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    llama(head_dim=32),
]


@pytest.mark.parametrize("model", FAMILIES, ids=lambda model: model.config.model_type)
def test_families(tmp_path, model):
    require_same(tmp_path, model)


SCALED = {"rope_scaling_factor": 4.0}
ROTARY = [
    ({"rope_type": "default", "rope_theta": 2e6}, {}),
    (
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {"rope_scaling_type": RopeScalingType.LINEAR, **SCALED},
    ),
    (
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
        {"rope_scaling_type": RopeScalingType.YARN, "rope_scaling_orig_ctx_len": 16, **SCALED},
    ),
]


@pytest.mark.parametrize(("parameters", "fields"), ROTARY)
def test_scaled_rotary_angles(tmp_path, parameters, fields):
    require_same(tmp_path, llama(rope_parameters=parameters), **fields)


@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
def test_rotary_angles_of_llama_3(tmp_path, factor):
    """llama.cpp keeps what divides them, not what that was made of."""
    model = llama(rope_parameters=LLAMA_3 | {"factor": factor}, head_dim=64)
    plain = 5e5 ** -(torch.arange(32) / 32)
    require_same(tmp_path, model, rope_freqs=plain / model.model.rotary_emb.inv_freq)


OTHERS = [
    ({"rope_freqs": np.linspace(1, 9, 8)}, "rope_freqs"),
    ({"rope_scaling_type": RopeScalingType.LONGROPE}, "longrope"),
]


@pytest.mark.parametrize(("options", "word"), OTHERS)
def test_other_rotary_angles_are_refused_by_name(tmp_path, options, word):
    path = written(tmp_path / "m.gguf", llama(), **options)
    with pytest.raises(ValueError, match=rf"m\.gguf.*{word}.*hub id\.$"):
        convert(path, tmp_path / "made")
