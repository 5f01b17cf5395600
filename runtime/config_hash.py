"""What makes two configurations those of one model: everything but names, dtypes and library versions."""

import hashlib
import json
from typing import Any

from transformers import PreTrainedConfig

# What every Hugging Face config has (names, dtypes, outputs, library versions) and special token ids do not make another model.
GENERIC_KEYS = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"} | {
    "transformers_version",
    "use_cache",
    "torch_dtype",
}


def config_hash(config: PreTrainedConfig) -> str:
    """Of a model's configuration, whatever number format it was loaded in."""
    own = config.to_dict()
    return hashed({key: own[key] for key in own if key not in GENERIC_KEYS and not key.endswith("_token_id")})


def hashed(value: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
