"""A model pair: one target, an optional draft, over one vocabulary."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel, ForwardPath
from runtime.dtype_choice import DRAFT_ROWS, TARGET_ROWS, fastest_dtype
from runtime.vocabulary import require_shared_vocabulary

DRAFT_PRIORITY = -1  # beside the target a draft's many small steps go first


class ModelPair:
    """Two causal language models over one vocabulary.

    Parameters
    ----------
    target, draft
        Hugging Face causal LMs, kept in their own dtype and on their own device; ``draft=None`` for single-model methods.
        Anything with the `LanguageModel` interface is taken as it is.
    tokenizer, draft_tokenizer
        Optional. Both together prove that the models share a vocabulary; without them the vocabulary sizes must be equal.
    forward
        What runs Hugging Face models: ``auto`` (the compact forward where it computes the model, else Hugging Face's own),
        ``compact`` (refuse others) or ``hugging_face``. The compact forward joins weights in place: the models' parameters become
        views of the joint ones.

    Raises
    ------
    ValueError
        If the models do not share a vocabulary.

    Notes
    -----
    Laws live on the target's vocabulary: a draft with fewer (padding) ids gives the others probability zero.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        tokenizer: Any = None,
        draft_tokenizer: Any = None,
        forward: ForwardPath = "auto",
    ) -> None:
        self.target = _adapt(target, forward)
        if draft is self.target and isinstance(draft, CausalLanguageModel):
            draft = draft.model  # what is recorded for one is not the other's
        self.draft = None if draft is None else _adapt(draft, forward, DRAFT_PRIORITY)
        self.tokenizer = tokenizer
        if self.draft is not None:
            require_shared_vocabulary(
                tokenizer,
                draft_tokenizer,
                self.target.vocabulary_size,
                self.draft.vocabulary_size,
            )

    @classmethod
    def load(
        cls,
        target: str | Path,
        draft: str | Path | None = None,
        device: str = "auto",
        dtype: str | torch.dtype = "auto",
        tokenizer: str | Path | None = None,
        forward: ForwardPath = "auto",
        device_map: Any = None,
        draft_device: str | None = None,
    ) -> "ModelPair":
        """Load from local folders or hub ids.

        ``device='auto'`` takes the first CUDA device if there is one; ``dtype='auto'`` takes, for each model, the faster of
        bfloat16 and float32, timed here on CPUs (`runtime.dtype_choice`), and bfloat16 on accelerators that have it.
        ``tokenizer`` defaults to the target's own and stands in for a draft folder that has none.

        With several devices, ``device_map`` (``"auto"``, or a mapping of modules to devices) spreads the target over them and
        ``draft_device`` is the draft's own; ``device`` by default. A spread target runs by Hugging Face's own forward and needs
        the package accelerate. `runtime.pipelined_draft` lets the draft work on whichever half of the target is idle.
        """
        place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        number = None if dtype == "auto" else _parse_dtype(dtype)
        own = place if draft_device is None else torch.device(draft_device)
        models = [
            None if path is None else _load_model(path, at, number, rows, spread)
            for path, at, rows, spread in ((target, place, TARGET_ROWS, device_map), (draft, own, DRAFT_ROWS, None))
        ]
        shared = _load_tokenizer(tokenizer or target)
        draft_tokenizer = None if draft is None else _load_tokenizer(draft) or (shared if tokenizer else None)
        return cls(models[0], models[1], tokenizer=shared, draft_tokenizer=draft_tokenizer, forward=forward)


def _adapt(model: Any, forward: ForwardPath, priority: int = 0) -> LanguageModel:
    return CausalLanguageModel(model, forward, priority) if isinstance(model, PreTrainedModel) else model


def _parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    number = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(number, torch.dtype) or not number.is_floating_point:
        raise ValueError(
            f"dtype {dtype!r} is not a floating-point torch dtype; use auto, float32, bfloat16 or float16."
        )
    return number


def _load_model(
    path: str | Path, device: torch.device, dtype: torch.dtype | None, rows: Sequence[int], device_map: Any = None
) -> PreTrainedModel:
    """``dtype=None``: the fastest for passes over ``rows`` nodes. A ``device_map`` spreads the model over several devices."""
    try:
        if dtype is None:
            dtype = fastest_dtype(AutoConfig.from_pretrained(path).get_text_config(), device, rows)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, device_map=device_map)
    except OSError as error:
        raise ValueError(f"cannot load a model from {path}: {str(error).splitlines()[0]}") from error
    return model if device_map is not None else model.to(device)


def _load_tokenizer(path: str | Path) -> Any:
    """The folder's tokenizer, or ``None`` where it has none (then it is unknown)."""
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError):
        return None
