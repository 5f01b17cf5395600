"""Tiny random models of every architecture that is served: the configurations of real models, with sizes of a few tens.

Sliding windows are shorter than the texts of the tests. DeepSeek-Coder and the distilled models are Llamas.
"""

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

WINDOW = 24
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
LATENT = {  # multi-head latent attention, and experts
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
CODER = {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}
SOFT = HEADS | {
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": False,
}  # tied ones repeat a token


def seeing_gemma3(**text) -> Gemma3Config:
    """As Gemma 3 from 4B on: the language model stands within one that takes images, too."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    return Gemma3Config(text_config=text, vision_config={**sizes, "image_size": 28, "patch_size": 14})


FAMILIES = {  # with what each has that the others have not
    "llama": (LlamaConfig, {**HEADS, "rope_parameters": LLAMA3}),
    "mistral": (MistralConfig, {**HEADS, "sliding_window": None}),
    "mistral-window": (MistralConfig, {**HEADS, "sliding_window": WINDOW}),
    "qwen2": (Qwen2Config, {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {**HEADS, "head_dim": 16}),
    "gemma2": (Gemma2Config, {**SOFT, "attn_logit_softcapping": 2.0}),
    "gemma3": (Gemma3TextConfig, SOFT),
    "gemma3-seeing": (seeing_gemma3, SOFT),
    "deepseek-coder": (LlamaConfig, {"num_key_value_heads": 4, "rope_parameters": CODER}),
    "deepseek-v2": (DeepseekV2Config, LATENT),
    "deepseek-v3": (DeepseekV3Config, LATENT),
    "phi": (PhiConfig, {"partial_rotary_factor": 0.5}),
    "phi3": (Phi3Config, {"num_key_value_heads": 2, "sliding_window": None}),
    "phi3-window": (Phi3Config, {"num_key_value_heads": 2, "sliding_window": WINDOW}),
}
COMPACT = ("llama", "mistral", "mistral-window", "qwen2", "qwen3", "deepseek-coder")
WINDOWED = ("mistral-window", "gemma2", "gemma3", "gemma3-seeing", "phi3-window")


def configuration(family: str, vocabulary: int = 64, layers: int = 2, **changes) -> PreTrainedConfig:
    """Of ``family``; a window model of two layers or more has a global layer last where its family has them."""
    kind, own = FAMILIES[family]
    sizes = {"vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 256}
    sizes |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if "gemma" in family:
        own = {**own, "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"]}
    return kind(**{**sizes, **own, **changes})


def family_model(family: str, seed: int = 0, noise: float = 0.0, **changes) -> PreTrainedModel:
    """A random model in float32 whose distributions are neither flat nor one-hot, with biases and norms that matter.

    ``noise`` on its weights makes another model that often agrees with it: a draft.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(configuration(family, **changes), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + ("norm" in name) * ("gemma" not in family))
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape))
        if "gemma" in family:
            model.get_input_embeddings().weight.mul_(0.3)  # the model scales them up
    return model.eval()
