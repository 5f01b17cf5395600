"""The identity part of the capture contract, read from a live pair (`predictors.contract`)."""

import hashlib
import json
from typing import Any

import torch

from predictors.contract import Identity, ModelIdentity
from runtime.adapter import CausalLanguageModel, LanguageModel
from runtime.pair import ModelPair

NUM_SAMPLED_WEIGHTS = 128
# Names, dtypes and library versions do not make another model; neither do generation defaults.
IGNORED_CONFIG_KEYS = {
    "_name_or_path",
    "name_or_path",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "architectures",
    "use_cache",
}


def pair_identity(pair: ModelPair, layers: tuple[int, ...]) -> Identity:
    """What features captured from ``layers`` of this pair's target belong to."""
    return Identity(
        target=model_identity(pair.target),
        draft=None if pair.draft is None else model_identity(pair.draft),
        tokenizer_hash=_tokenizer_hash(pair.tokenizer),
        chat_template_hash=_chat_template_hash(pair.tokenizer),
        layer_ids=layers,
    )


def model_identity(model: LanguageModel) -> ModelIdentity:
    """Config hash and sampled weights of a wrapped Hugging Face model."""
    if not isinstance(model, CausalLanguageModel):
        raise ValueError(f"{type(model).__name__} has no identity: learned controllers need a Hugging Face model.")
    config = {key: value for key, value in model.model.config.to_dict().items() if key not in IGNORED_CONFIG_KEYS}
    return ModelIdentity(_hash(config), _sampled_weights(model.model))


def _sampled_weights(model: torch.nn.Module) -> tuple[float, ...]:
    """Weights at evenly spread places of evenly spread matrices, rounded to six digits."""
    matrices = [tensor for _, tensor in sorted(model.named_parameters()) if tensor.dim() > 1]
    samples = []
    for index in range(NUM_SAMPLED_WEIGHTS):
        matrix = matrices[index * len(matrices) // NUM_SAMPLED_WEIGHTS]
        place = (index * 2654435761) % matrix.numel()
        row, column = divmod(place, matrix.shape[-1])
        samples.append(float(f"{float(matrix.detach().reshape(-1, matrix.shape[-1])[row, column]):.6g}"))
    return tuple(samples)


def _tokenizer_hash(tokenizer: Any) -> str | None:
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = None if backend is None else json.loads(backend.to_str()).get("pre_tokenizer")
    return _hash({"vocabulary": tokenizer.get_vocab(), "pre_tokenizer": rules})


def _chat_template_hash(tokenizer: Any) -> str | None:
    if tokenizer is None:
        return None
    return _hash(getattr(tokenizer, "chat_template", None))


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
