"""Random models of Hugging Face, small enough for tests; those given by tables are in `runtime.audit.tables`."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(
    vocabulary_size: int = 32, seed: int = 0, hidden: int = 32, layers: int = 2, **config
) -> LlamaForCausalLM:
    """A random Llama in float32 whose laws are neither flat nor one-hot."""
    torch.manual_seed(seed)
    sizes = {"intermediate_size": 2 * hidden, "num_attention_heads": 4, "num_key_value_heads": 2}
    options = sizes | {"max_position_embeddings": 256, "vocab_size": vocabulary_size, "hidden_size": hidden}
    options |= {"num_hidden_layers": layers, **dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))}
    model = LlamaForCausalLM(LlamaConfig(**options | config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model.eval()


def near(model: LlamaForCausalLM, noise: float = 0.02) -> LlamaForCausalLM:
    """``model``, its weights changed a little: a draft that is sometimes right."""
    for index, parameter in enumerate(model.parameters()):
        parameter.data.add_(noise * parameter.data.std() * (index % 3))
    return model
