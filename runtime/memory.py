"""Bytes that decoding holds on its device: weights, cache and workspace, known before a request is opened.

Models on torch's meta device count as if they lay where they are planned for.

    weights    every parameter and buffer once, however many modules share it; packed, every matrix of blocks and head once more,
               unless `ModelPair.load` let the first copy go: then only a tied embedding is held twice
               an EAGLE-3 drafter's on a CPU once more, as its files have it
    cache      keys and values of every layer for the rows of one request, with its rotary tables
    workspace  the widest work at once: the prompt's activations in one layer (prefills are not graphed), with the target's states
               that a drafter reads, or a round's logits and distributions; and on a CUDA device what the matrix library sets
               aside, for graphed work and for prefills

Source: the shapes in `runtime.compact`; the matrix library's share on Hopper as PyTorch documents ``CUBLAS_WORKSPACE_CONFIG``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from runtime.adapter import SCRATCH_ROOM
from runtime.causal_model import CausalLanguageModel
from runtime.compact.state import rounded_rows
from runtime.eagle3.checkpoint import is_eagle3, unloaded_checkpoint
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.pair import ModelPair, loading

LIBRARY = 2 * (32 << 20)  # bytes of the matrix library's workspaces
LAW_COPIES = 6  # of a round's distributions at most: logits, both models' distributions, what a rule computes
INNER = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner")  # names of a block's widest layer
ROUND_ROWS = 16  # distributions of a round


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that one model holds, by share."""

    weights: int
    cache: int
    workspace: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.workspace


@dataclass(frozen=True)
class Work:
    """Peak work of a model: a cache of ``rows`` (scratch comes on top), a pass over ``fed`` tokens, ``laws`` distributions over
    the vocabulary with all that is computed from each."""

    rows: int
    fed: int
    laws: int = ROUND_ROWS


def unloaded_pair(
    dtype: torch.dtype,
    target: PretrainedConfig,
    draft: PretrainedConfig | Mapping[str, Any] | None = None,
    bits: int | None = None,
) -> ModelPair:
    """Make a pair of these configurations on torch's meta device, where weights have shapes and no memory; ``bits`` of each
    weight of the target's blocks, if it is quantised. The draft's may be that of an EAGLE-3 drafter."""
    model = _unloaded(target, dtype, bits)
    pair = ModelPair(model)
    if draft is not None:  # only tokenizers know if they share a vocabulary
        given = draft if isinstance(draft, Mapping) else draft.to_dict()
        if is_eagle3(given):
            pair.draft = Eagle3Drafter(unloaded_checkpoint(given, dtype), model)
        else:
            assert not isinstance(draft, Mapping), draft
            pair.draft = _unloaded(draft, dtype)
    return pair


def _unloaded(config: PretrainedConfig, dtype: torch.dtype, bits: int | None = None) -> CausalLanguageModel:
    with torch.device("meta"), loading(config._name_or_path or "its configuration"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
        for module in model.modules() if bits else ():
            if isinstance(module, nn.Linear) and module is not model.get_output_embeddings():
                packed = torch.empty(module.weight.numel() * (bits or 0) // 8, dtype=torch.uint8)
                module.weight = nn.Parameter(packed, requires_grad=False)
    return CausalLanguageModel(model, "hugging_face" if bits else "auto")


def planned_memory(
    pair: ModelPair, prompt_tokens: int, max_new_tokens: int, device: str | None = None
) -> dict[str, ModelMemory]:
    """Plan the memory of a request of these lengths, by model (``target``, and ``draft`` if there is one), on a type of
    ``device``; `ValueError` as `model_memory`."""
    work = Work(prompt_tokens + max_new_tokens, prompt_tokens)
    return {name: model_memory(name, model, work, device) for name, model in pair.models.items()}


def model_memory(name: str, model: object, work: Work, device: str | None = None) -> ModelMemory:
    """Count the bytes that a model holds for some work; ``device``: the type that it is planned for, by default its own.
    `ValueError` if it is neither a wrapped Hugging Face model nor an EAGLE-3 drafter."""
    if not isinstance(model, CausalLanguageModel | Eagle3Drafter):
        raise ValueError(f"the {name} is a {type(model).__name__}, whose memory is not known here.")
    device = device or model.device.type
    drafter = model.checkpoint if isinstance(model, Eagle3Drafter) else None
    config = model.model.config.get_text_config() if isinstance(model, CausalLanguageModel) else model.checkpoint.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    number = model.dtype.itemsize
    compact = model.forward != "hugging_face"
    graphed = model.forward in ("graphed", "fused") or (
        compact and not drafter and device == "cuda" != model.device.type
    )
    rows = rounded_rows(work.rows + SCRATCH_ROOM) if graphed else work.rows + SCRATCH_ROOM
    tables = 2 if compact else 0  # of angles
    cache = rows * head_dim * number * (2 * heads * model.num_layers + tables)
    inner = next(filter(None, (getattr(config, name, None) for name in INNER)), 4 * config.hidden_size)
    inner = max(inner) if isinstance(inner, list) else inner  # Gemma 3n's, by layer
    widest = 3 * inner + 2 * config.hidden_size + heads * head_dim
    if drafter is not None:  # what was tapped, by layer and joined
        widest += 2 * drafter.num_states * drafter.target_hidden
    law = torch.promote_types(model.dtype, torch.float32).itemsize
    laws = work.laws * LAW_COPIES * config.vocab_size * law
    library = LIBRARY if device == "cuda" else 0
    weights = weight_bytes(model, device)
    return ModelMemory(weights, cache, max(work.fed * widest * number, laws) + library)


def weight_bytes(model: CausalLanguageModel | Eagle3Drafter, device: str | None = None) -> int:
    """Count bytes of parameters and buffers, without those let go, and of packed matrices; ``device`` as in `model_memory`."""
    device = device or model.device.type
    if isinstance(model, Eagle3Drafter):
        files = sum(one.nbytes for one in model.checkpoint.tensors.values()) if device == "cpu" else 0
        return model.checkpoint.num_parameters * model.dtype.itemsize + files
    unloaded = model.device.type == "meta"
    tensors = [one for one in (*model.model.parameters(), *model.model.buffers()) if unloaded or not one.is_meta]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    will_pack = device == "cpu" != model.device.type and model.forward != "hugging_face"
    tied = (
        model.model.get_input_embeddings().weight.nbytes if will_pack and model.model.config.tie_word_embeddings else 0
    )
    return sum(storages.values()) + model.packed_bytes + tied  # the head will be packed
