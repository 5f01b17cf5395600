"""Identity of a pair's models, for the capture contract (`predictors.bundle`), and whether they share a vocabulary."""

import hashlib
import json
import re
import warnings
from copy import copy
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from predictors.bundle import Identity, ModelIdentity, require_same_identity
from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel, sampled_weights
from runtime.eagle3.drafter import Eagle3Drafter

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from runtime.pair import ModelPair

MARKUP = re.compile(r"<.+>|\[.+\]")  # what special tokens look like: <|user|>, [PAD]
SHARE = (
    "A draft model must share its target's vocabulary: choose a draft of the target's own model family, or one trained on its "
    "tokenizer."
)


def pair_identity(pair: "ModelPair", layers: tuple[int, ...]) -> Identity:
    """Identify the pair that features captured from ``layers`` of its target belong to."""
    return Identity(
        target=_model_identity(pair.target),
        draft=None if pair.draft is None else _model_identity(pair.draft),
        tokenizer_hash=_tokenizer_hash(pair.tokenizer),
        chat_template_hash=None if pair.tokenizer is None else _hashed(getattr(pair.tokenizer, "chat_template", None)),
        layer_ids=layers,
    )


def require_pair(identity: Identity, pair: "ModelPair", what: str) -> None:
    """Raise `ContractError` naming the first difference unless ``what`` was made for ``pair``; what was made without a draft
    model takes the target alone."""
    asked = copy(pair)
    asked.draft = None if identity.draft is None else pair.draft
    remedy = "Load the pair it was made for, or make it for this one (dvc repro)."
    require_same_identity(identity, pair_identity(asked, identity.layer_ids), what, remedy)


def config_hash(config: "PreTrainedConfig") -> str:
    """Hash a model's configuration without names, number formats and library versions: they make no other model."""
    own = config.to_dict()
    return _hashed({key: own[key] for key in own if key not in _generic_keys() and not key.endswith("_token_id")})


def require_shared_vocabulary(
    target_tokenizer: "PreTrainedTokenizerBase | None",
    draft_tokenizer: "PreTrainedTokenizerBase | None",
    target_size: int,
    draft_size: int,
) -> None:
    """Raise `ValueError` for two models whose token ids do not mean the same: it names both sides, a token on which they differ,
    and the remedy.

    Equal tokens must have equal ids and equal ids equal tokens; a token that only one tokenizer knows is allowed. Embeddings may
    be padded to different sizes, as long as both have a row for every token. Special tokens may differ, with a warning: texts are
    the target's own whatever a draft proposes. Where a tokenizer is unknown (``None``), only equal sizes are accepted.
    """
    if target_tokenizer is None or draft_tokenizer is None:
        if target_size != draft_size:
            raise ValueError(
                f"target and draft have different vocabulary sizes ({target_size} and {draft_size}), and without both "
                f"tokenizers padding cannot be told from different tokens. {SHARE}"
            )
        return
    target, draft = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    special = set().union(*(getattr(one, "get_added_vocab", dict)() for one in (target_tokenizer, draft_tokenizer)))
    special |= set(filter(MARKUP.fullmatch, [*target, *draft]))
    plain = [{token: id for token, id in one.items() if token not in special} for one in (target, draft)]
    if difference := _first_difference(*plain):
        raise ValueError(
            f"target and draft have different vocabularies ({len(target)} and {len(draft)} tokens): {difference}. {SHARE}"
        )
    needed = max((id for one in plain for id in one.values()), default=-1) + 1
    for name, size in (("target", target_size), ("draft", draft_size)):
        if size < needed:
            raise ValueError(
                f"the {name} model embeds {size} tokens (target {target_size}, draft {draft_size}), but the tokenizers use "
                f"{needed}. {SHARE}"
            )
    beyond = [f"{token!r} ({id}) has no embedding" for token, id in target.items() if id >= target_size]
    if found := _first_difference(target, draft) or next(iter(beyond), None):
        warnings.warn(f"special tokens differ, and texts are the target's own all the same: {found}", stacklevel=4)


def _first_difference(target: dict[str, int], draft: dict[str, int]) -> str | None:
    if target == draft:
        return None
    for token, id in sorted(target.items(), key=lambda item: item[1]):
        if draft.get(token, id) != id:
            return f"token {token!r} is {id} in the target and {draft[token]} in the draft"
    target_tokens = {id: token for token, id in target.items()}
    for token, id in sorted(draft.items(), key=lambda item: item[1]):
        if target_tokens.get(id, token) != token:
            return f"id {id} is {target_tokens[id]!r} in the target and {token!r} in the draft"
    return None


def _model_identity(model: LanguageModel) -> ModelIdentity:
    if isinstance(model, Eagle3Drafter):
        made = model.checkpoint
        own = [made.shape, asdict(made.variant), model.features, made.vocabulary_size]
        return ModelIdentity(_hashed(own), sampled_weights(made.tensors))
    if not isinstance(model, CausalLanguageModel):
        raise ValueError(f"{type(model).__name__} has no identity: learned controllers need a Hugging Face model.")
    return ModelIdentity(config_hash(model.model.config), model.samples)


def _tokenizer_hash(tokenizer: Any) -> str | None:
    """Hash everything that turns text into ids: vocabulary, merges, normaliser, splitting, added tokens."""
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _hashed(tokenizer.get_vocab())
    own = json.loads(backend.to_str())
    return _hashed({key: own[key] for key in own if key not in ("padding", "truncation")})


@cache
def _generic_keys() -> set[str]:
    """Names of the entries that every Hugging Face config has."""
    from transformers import PreTrainedConfig

    own = {"transformers_version", "use_cache", "torch_dtype"}
    return set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"} | own


def _hashed(value: Any) -> str:
    """Hash JSON values shortly."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
