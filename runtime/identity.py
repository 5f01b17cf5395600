"""The identity part of the capture contract, read from a live pair (`predictors.contract`)."""

import json
from typing import Any

import torch

from predictors.contract import Identity, ModelIdentity, require_same_identity
from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel
from runtime.config_hash import config_hash, hashed
from runtime.pair import ModelPair

SAMPLES_PER_PARAMETER = 4


def pair_identity(pair: ModelPair, layers: tuple[int, ...]) -> Identity:
    """What features captured from ``layers`` of this pair's target belong to."""
    return Identity(
        target=model_identity(pair.target),
        draft=None if pair.draft is None else model_identity(pair.draft),
        tokenizer_hash=_tokenizer_hash(pair.tokenizer),
        chat_template_hash=None if pair.tokenizer is None else hashed(getattr(pair.tokenizer, "chat_template", None)),
        layer_ids=layers,
    )


def require_pair(identity: Identity, pair: ModelPair, what: str) -> None:
    """`ContractError` naming the first difference unless ``what`` was made for ``pair``; what was made without a draft model
    takes the target alone."""
    alone = ModelPair(pair.target, tokenizer=pair.tokenizer) if identity.draft is None else pair
    remedy = "Load the pair it was made for, or make it for this one (dvc repro)."
    require_same_identity(identity, pair_identity(alone, identity.layer_ids), what, remedy)


def model_identity(model: LanguageModel) -> ModelIdentity:
    """Config hash and sampled weights of a wrapped Hugging Face model."""
    if not isinstance(model, CausalLanguageModel):
        raise ValueError(f"{type(model).__name__} has no identity: learned controllers need a Hugging Face model.")
    return ModelIdentity(config_hash(model.model.config), _sampled_weights(model.model))


def _sampled_weights(model: torch.nn.Module) -> tuple[float, ...]:
    """Weights at fixed, spread places of every parameter, rounded to six digits."""
    samples = []
    for index, (_, parameter) in enumerate(sorted(model.named_parameters())):
        rows = parameter.detach().reshape(-1, parameter.shape[-1])
        for sample in range(SAMPLES_PER_PARAMETER):
            row, column = divmod(
                (SAMPLES_PER_PARAMETER * index + sample + 1) * 2654435761 % rows.numel(), rows.shape[1]
            )
            samples.append(float(f"{float(rows[row, column]):.6g}"))
    return tuple(samples)


def _tokenizer_hash(tokenizer: Any) -> str | None:
    """Everything that turns text into ids: vocabulary, merges, normaliser, splitting, added tokens."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hashed(tokenizer.get_vocab())
    return hashed(
        {key: value for key, value in json.loads(backend.to_str()).items() if key not in ("padding", "truncation")}
    )
