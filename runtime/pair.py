"""A model pair: one target, an optional draft, over one vocabulary."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import torch

from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel, ForwardPath
from runtime.device import native_dtype
from runtime.eagle3.checkpoint import Checkpoint, eagle3_folder, read_checkpoint
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.identity import require_shared_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

DRAFT_PRIORITY = -1  # beside the target a draft's many small steps go first
OF_BLOCKS = re.compile(r"((model|transformer|gpt_neox)\.)?((language_model|decoder)\.)?(layers|h|blocks)\.")
LEFTOVERS = re.compile(r"(inv_freq|(cos|sin)_cached|masked_bias|(attn|attention)\.bias|[kv]_scale)$")  # of others
OTHER_TASK = re.compile("Classification|Answering|Reward")
# Where what holds a model, and computes as it does, has it.
INNER = {"OptimizedModule": "_orig_mod", **dict.fromkeys(("DataParallel", "DistributedDataParallel"), "module")}
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "tekken.json")


class ModelPair:
    """Two causal language models over one vocabulary.

    Parameters
    ----------
    target, draft
        Hugging Face causal LMs, kept in their own dtype and on their own device; ``draft=None`` for single-model methods. A draft
        may also be an EAGLE-3 drafter as `runtime.eagle3.checkpoint.read_checkpoint` reads it, which takes the target's dtype and
        device. Anything with the `LanguageModel` interface is taken as it is, and of a model that is compiled, wrapped for data
        parallelism or has PEFT adapters the one inside.
    tokenizer, draft_tokenizer
        Optional. Both together prove that the models share a vocabulary; without them the vocabulary sizes must be equal.
    forward
        What runs Hugging Face models: ``auto``, or one to insist on, as `CausalLanguageModel` has them. The compact forward joins
        weights in place, and the models' parameters become views of the joint ones; where it is packed, matrices are held twice.

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
        if isinstance(draft, Checkpoint):
            if not isinstance(self.target, CausalLanguageModel):
                raise ValueError(
                    f"an EAGLE-3 drafter reads a Hugging Face target's states, and this one is {target!r}."
                )
            draft = Eagle3Drafter(draft, self.target)
        self.draft = None if draft is None else _adapt(draft, forward, DRAFT_PRIORITY)
        self.tokenizer = tokenizer
        if self.draft is not None:
            require_shared_vocabulary(
                tokenizer, draft_tokenizer, self.target.vocabulary_size, self.draft.vocabulary_size
            )

    @property
    def models(self) -> dict[str, LanguageModel]:
        """By ``target``, and ``draft`` if there is one."""
        return {"target": self.target} | ({} if self.draft is None else {"draft": self.draft})

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
        quantization: Mapping[str, Any] | None = None,
        whole: bool = False,
    ) -> "ModelPair":
        """Load from local folders or hub ids.

        ``device='auto'`` takes the first CUDA device if there is one. ``tokenizer`` defaults to the target's own and stands in
        for a draft folder that has none.

        ``dtype='auto'`` is bfloat16 where the device multiplies it natively, else float32; ``forward='auto'`` is the rule of
        `CausalLanguageModel`. On a CPU that is packed matrices, and the models keep no other copy of them: memory is that of the
        weights, of a tied embedding twice. So Hugging Face's own forward of such a model (``pair.target.model``) raises an error.
        ``whole`` keeps both copies, for what runs both forwards.

        With several devices, ``device_map`` (``"auto"``, or a mapping of modules to devices) spreads the target over them and
        ``draft_device`` is the draft's own; ``device`` by default. A spread target runs by Hugging Face's own forward and needs
        the package accelerate.

        ``quantization`` of the target is Hugging Face's ``quantization_config`` as a mapping; files that are quantised need none.
        Such a target runs by Hugging Face's own forward, too.

        Raises
        ------
        ValueError
            If a model cannot be read (names file and remedy), or a device cannot be used here.
        """
        place = usable(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        own = place if draft_device is None else usable(draft_device)
        models: dict[str, CausalLanguageModel] = {}
        drafter = None if draft is None else eagle3_folder(draft)
        for name, path, at, priority, options in (
            ("target", target, place, 0, {"device_map": device_map, "quantization": quantization}),
            ("draft", draft, own, DRAFT_PRIORITY, {}),
        ):
            if path is not None and not (name == "draft" and drafter is not None):
                number = native_dtype(at) if dtype == "auto" else parse_dtype(dtype)
                models[name] = CausalLanguageModel(load_model(path, at, number, **options), forward, priority, whole)
        shared = _known_tokenizer(tokenizer or target)
        draft_tokenizer = None if draft is None else _known_tokenizer(draft) or (shared if tokenizer else None)
        with loading(draft or target):
            drafting = models.get("draft") if drafter is None else read_checkpoint(drafter)
        return cls(models["target"], drafting, tokenizer=shared, draft_tokenizer=draft_tokenizer)


def usable(device: str) -> torch.device:
    """The device of that name; `ValueError` if there is none here, or this torch was built without it."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (AssertionError, ImportError, RuntimeError, TypeError) as error:  # AssertionError: a torch without CUDA
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used here ({reason}). Use auto, or cpu.") from error
    return place


def _adapt(model: Any, forward: ForwardPath, priority: int = 0) -> LanguageModel:
    kinds = [kind.__name__ for kind in type(model).__mro__]  # without the class's import of seconds
    for kind in (kind for kind in kinds if kind in INNER):
        return _adapt(getattr(model, INNER[kind]), forward, priority)
    if hasattr(type(model), "get_base_model"):
        return _adapt(_without_peft(model), forward, priority)
    plain = "PreTrainedModel" in kinds and not isinstance(model, type)
    if plain and not model.config.is_encoder_decoder and model.get_output_embeddings() is not None:
        return CausalLanguageModel(model, forward, priority)
    if plain or not hasattr(model, "vocabulary_size"):
        raise ValueError(
            f"{model if isinstance(model, str) else kinds[0]} is no causal language model. Pass one of Hugging Face "
            "(AutoModelForCausalLM) without what wraps it, or load it from its folder or hub id by ModelPair.load."
        )
    return cast(LanguageModel, model)


def _without_peft(model: Any) -> Any:
    """The model in a PEFT one, adapters included; `ValueError` if it computes something else alone."""
    inner, settings = model.get_base_model(), getattr(model, "active_peft_config", None)
    ids = torch.arange(8, device=inner.device)[None] % inner.config.get_text_config().vocab_size
    with torch.inference_mode():
        whole, alone = (one.eval()(input_ids=ids).logits for one in (model, inner))
    if getattr(settings, "is_prompt_learning", False) or whole.shape != alone.shape or not torch.allclose(whole, alone):
        raise ValueError(
            f"{type(model).__name__} is more than the model inside (prompt learning): merge_and_unload() it where its method "
            "can, or decode with get_base_model() alone."
        )
    return inner


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating-point torch dtype by its name; `ValueError` for any other."""
    number = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(number, torch.dtype) or not number.is_floating_point or number.itemsize < 2:
        raise ValueError(
            f"dtype {dtype!r} is not a floating-point torch dtype to compute in; use auto, float32, bfloat16 or float16."
        )
    return number


def load_config(path: str | Path, **options: Any) -> "PreTrainedConfig":
    """What config.json says, with attention that takes a tree mask. `ValueError` where transformers cannot read it, it needs code
    of its own or is of another task, or an adapter lies there."""
    from transformers import AutoConfig
    from transformers.utils import find_adapter_config_file

    with loading(path):
        if find_adapter_config_file(path, **options):
            raise ValueError("adapter_config.json: an adapter is served merged. merge_and_unload() it, and save that")
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **options)
        config.return_dict = True
        if tasks := list(filter(OTHER_TASK.search, config.architectures or ())):
            raise ValueError(f"{tasks[0]} writes no text, as a causal language model does")
        if config._attn_implementation != "eager":
            config._attn_implementation = None  # transformers chooses sdpa
    return config


def load_model(
    path: str | Path, device: torch.device, dtype: torch.dtype, device_map: Any = None, quantization: Any = None
) -> "PreTrainedModel":
    """A causal language model in ``dtype``; a ``device_map`` spreads it over devices, and ``quantization`` is Hugging Face's."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {} if quantization is None else {"quantization_config": dict(quantization)}
    device_map = device_map or ({"": str(device)} if options else None)  # quantised weights do not move
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which ones, `_require_weights` says
    options |= {"config": load_config(path), "trust_remote_code": False}
    with loading(path):
        model, info = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, device_map=device_map, **options)
    _require_weights(path, info)
    if model.device.type == "meta" != device.type:
        raise ValueError(f"{path}: device_map keeps the first layers on no device. Map them to one.")
    return model if device_map is not None else model.to(device)


@contextmanager
def loading(path: str | Path, what: str = "a model") -> Iterator[None]:
    """`ValueError` in one line where what lies at ``path`` cannot be loaded."""
    from safetensors import SafetensorError

    try:
        yield
    except Exception as error:  # checks of configurations and the tokenizers' library have types of their own, or none
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        plain = isinstance(error, ImportError | OSError | RuntimeError | SafetensorError | ValueError)
        known = [frame.f_locals.get("loading_info") for frame, _ in walk_tb(error.__traceback__)]
        if lacking := next(filter(None, (getattr(one, "conversion_errors", None) for one in known)), None):
            reason = f"its files lack parts of {', '.join(sorted(lacking)[:3])}"
        elif "trust_remote_code" in str(error):
            reason = "it needs code of its own, which is never run. Take one of a family that transformers has"
        elif what == "a model" and not plain:
            reason = f"its config.json names no model ({type(error).__name__}: {' '.join(str(error).split())})"
        raise ValueError(f"cannot load {what} from {path}: {reason}. Mend that, or fetch the model again.") from error


def _require_weights(path: str | Path, info: Mapping[str, Any]) -> None:
    """`ValueError` unless transformers' ``info`` of a loading has all weights, in their shapes, and none of blocks unread."""
    other = [f"{name} {tuple(held)}, not {tuple(own)}" for name, held, own in info["mismatched_keys"]]
    unread = [name for name in filter(OF_BLOCKS.match, info["unexpected_keys"]) if not LEFTOVERS.search(name)]
    wrong = {"missing": info["missing_keys"], "of another shape": other, "unread": unread}
    told = [f"{len(names)} {what}: {', '.join(sorted(names)[:3])}" for what, names in wrong.items() if names]
    if told:
        remedy = "Fetch the model again, or save it with save_pretrained, out of any wrapper."
        raise ValueError(f"{path}: the weights do not fit config.json ({'; '.join(told)}). {remedy}")


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a folder or a hub's model; `ValueError` where there is none, or it cannot be read."""
    from transformers import AutoTokenizer

    with loading(path, "a tokenizer"):
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)


def _known_tokenizer(path: str | Path) -> Any:
    """As `load_tokenizer`, or ``None``; with a warning, where it cannot be read."""
    try:
        return load_tokenizer(path)
    except ValueError as error:
        if has_tokenizer(path):
            warnings.warn(f"{error} Until then it stays unknown.", stacklevel=3)
        return None


def has_tokenizer(path: str | Path) -> bool:
    """Whether a folder holds files of a tokenizer."""
    return any(any(Path(os.path.expanduser(path)).glob(pattern)) for pattern in TOKENIZER_FILES)
