"""What makes two configurations those of one model: everything but names, dtypes and library versions."""

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@cache
def _generic_keys() -> set[str]:
    """What every Hugging Face config has (names, dtypes, outputs, library versions): it makes no other model."""
    from transformers import PreTrainedConfig

    own = {"transformers_version", "use_cache", "torch_dtype"}
    return set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"} | own


def config_hash(config: "PreTrainedConfig") -> str:
    """Of a model's configuration, whatever number format it was loaded in."""
    own = config.to_dict()
    return hashed({key: own[key] for key in own if key not in _generic_keys() and not key.endswith("_token_id")})


def hashed(value: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
