"""Whether what lies in a model's folder can be loaded, and whether its weights are those of its configuration."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEFTOVERS = re.compile(r"(inv_freq|masked_bias|(attn|attention)\.bias|[kv]_scale)$")  # of older versions, other engines
NAMED = 3  # of many tensors
REMEDY = "Name a folder that has all its files, or fetch the model again."


@contextmanager
def loading(path: str | Path) -> Iterator[None]:
    """`ValueError` in one line where transformers cannot load what lies at ``path``."""
    from safetensors import SafetensorError

    try:
        yield
    except (ImportError, OSError, RuntimeError, SafetensorError, ValueError) as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        remedy = f". {REMEDY}" if isinstance(error, OSError | SafetensorError) else ""
        raise ValueError(f"cannot load a model from {path}: {reason.rstrip('.')}{remedy}") from error


def require_weights(path: str | Path, model: "PreTrainedModel", info: Mapping[str, Any]) -> None:
    """`ValueError` where a checkpoint lacks weights of the ``model``, has them in another shape, or has some of its blocks that
    are not read; ``info`` is transformers' of the loading."""
    from runtime.hugging_face import blocks_of

    stack = next((name for name, module in model.named_modules() if module is blocks_of(model)), None)
    ahead = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None)  # blocks that only draft
    unread = [key for key in info["unexpected_keys"] if key.startswith(f"{stack}.") and not LEFTOVERS.search(key)]
    other = [f"{name} {tuple(held)}, not {tuple(own)}" for name, held, own in info["mismatched_keys"]]
    wrong = {"missing": info["missing_keys"], "of another shape": other, "unread": () if ahead else unread}
    told = [f"{what}: {_some(sorted(names))}" for what, names in wrong.items() if names]
    if told:
        raise ValueError(
            f"{path}: the weights do not fit config.json ({'; '.join(told)}). Fetch the model again, or save it with "
            "save_pretrained, out of any wrapper."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
