"""A model pair: one target, an optional draft, over one vocabulary."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from predictors.bundle import read_bundle
from predictors.config import parse_config
from predictors.latency.profile import read_profile
from predictors.latency.serving import KEY, ModelServing, Serving
from runtime.adapter import LanguageModel
from runtime.causal_model import FORWARDS, OTHER_FORWARDS, CausalLanguageModel, ForwardPath
from runtime.device import native_dtype
from runtime.eagle3.checkpoint import Checkpoint, eagle3_folder, read_checkpoint
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.identity import config_hash, require_shared_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DRAFT_PRIORITY = -1  # beside the target a draft's many small steps go first
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.model", "tekken.json")
_OTHER_RECORD = "Name this pair's latency profile or bundle, or leave record out."


class ModelPair:
    """Two causal language models over one vocabulary.

    Parameters
    ----------
    target, draft
        Hugging Face causal LMs, kept in their own dtype and on their own device; ``draft=None`` for single-model methods. A draft
        may also be an EAGLE-3 drafter as `runtime.eagle3.checkpoint.read_checkpoint` reads it, which takes the target's dtype and
        device. Anything with the `LanguageModel` interface is taken as it is.
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
        record: str | Path | Serving | None = None,
        quantization: Mapping[str, Any] | None = None,
    ) -> "ModelPair":
        """Load from local folders or hub ids.

        ``device='auto'`` takes the first CUDA device if there is one. ``tokenizer`` defaults to the target's own and stands in
        for a draft folder that has none.

        ``record`` is a device's latency profile or the folder of a bundle: it says in which number format and by which forward
        each model is fastest there, and decides what is ``auto``. Where that forward is not available here, a warning says so and
        the rule takes its place. Without a record, and without a stopwatch: bfloat16 where the device multiplies it natively,
        else float32, and what `CausalLanguageModel` takes by itself.

        With several devices, ``device_map`` (``"auto"``, or a mapping of modules to devices) spreads the target over them and
        ``draft_device`` is the draft's own; ``device`` by default. A spread target runs by Hugging Face's own forward and needs
        the package accelerate.

        ``quantization`` of the target is Hugging Face's ``quantization_config`` as a mapping; files that are quantised need none.
        Such a target runs by Hugging Face's own forward, too.

        Raises
        ------
        ValueError
            If a model or ``record`` cannot be read, or ``record`` is of another pair or of no draft: names file and remedy. If a
            device cannot be used here.
        """
        place = usable(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        own = place if draft_device is None else usable(draft_device)
        serving, source = record, "the record"
        if isinstance(serving, str | Path):
            serving, source = read_serving(serving), str(serving)
        if serving is not None and draft is not None and serving.draft is None:
            raise ValueError(f"{source} is of a target alone, and the pair has a draft. {_OTHER_RECORD}")
        models: dict[str, CausalLanguageModel] = {}
        drafter = None if draft is None else eagle3_folder(draft)
        for name, path, at, priority, options in (
            ("target", target, place, 0, {"device_map": device_map, "quantization": quantization}),
            ("draft", draft, own, DRAFT_PRIORITY, {}),
        ):
            if path is not None and not (name == "draft" and drafter is not None):
                served, where = None if serving is None else getattr(serving, name), f"{source}: {name}"
                model = load_model(path, at, _dtype(dtype, served, at, where), **options)
                models[name] = _served(model, forward, priority, served, where)
        shared = _load_tokenizer(tokenizer or target)
        draft_tokenizer = None if draft is None else _load_tokenizer(draft) or (shared if tokenizer else None)
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


def _dtype(wanted: str | torch.dtype, served: ModelServing | None, device: torch.device, where: str) -> torch.dtype:
    if wanted != "auto":
        return parse_dtype(wanted)
    if served is None:
        return native_dtype(device)
    try:
        return parse_dtype(served.dtype)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _served(
    model: "PreTrainedModel", forward: ForwardPath, priority: int, served: ModelServing | None, where: str
) -> CausalLanguageModel:
    """``model`` by ``forward``, or where that is ``auto`` as it was ``served``, if it can be here."""
    if served is not None:
        found = config_hash(model.config)
        if served.config_hash not in (None, found):
            raise ValueError(
                f"{where}: was decided for a model of configuration {served.config_hash}, and this one's is {found}. "
                f"{_OTHER_RECORD}"
            )
        if forward == "auto":
            known = FORWARDS.get(model.device.type, OTHER_FORWARDS)
            try:
                if served.forward not in known:
                    raise ValueError(f"on {model.device.type} there are {', '.join(known)}.")
                return CausalLanguageModel(model, served.forward, priority)
            except ValueError as error:
                warnings.warn(
                    f"{where}: forward {served.forward!r} is not available here, and the rule replaces it ({error})",
                    stacklevel=4,
                )
    return CausalLanguageModel(model, forward, priority)


def _adapt(model: Any, forward: ForwardPath, priority: int = 0) -> LanguageModel:
    kinds = [kind.__name__ for kind in type(model).__mro__]  # without the class's import of seconds
    return CausalLanguageModel(model, forward, priority) if "PreTrainedModel" in kinds else model


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating-point torch dtype by its name; `ValueError` for any other."""
    number = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(number, torch.dtype) or not number.is_floating_point:
        raise ValueError(
            f"dtype {dtype!r} is not a floating-point torch dtype; use auto, float32, bfloat16 or float16."
        )
    return number


def load_model(
    path: str | Path, device: torch.device, dtype: torch.dtype, device_map: Any = None, quantization: Any = None
) -> "PreTrainedModel":
    """A causal language model in ``dtype``; a ``device_map`` spreads it over devices, and ``quantization`` is Hugging Face's."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    options = {} if quantization is None else {"quantization_config": dict(quantization)}
    device_map = device_map or ({"": str(device)} if options else None)  # quantised weights do not move
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, device_map=device_map, **options
        )
    except (ImportError, OSError, SafetensorError) as error:
        raise ValueError(f"cannot load a model from {path}: {str(error).splitlines()[0]}") from error
    return model if device_map is not None else model.to(device)


def _load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a folder or a hub's model, or ``None`` where it has none; with a warning, where it cannot be read."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except Exception as error:  # those of the tokenizers' library have no type of their own
        if has_tokenizer(path):
            reason = str(error).partition("\n")[0]
            warnings.warn(f"{path}: its tokenizer cannot be read and stays unknown ({reason})", stacklevel=3)
        return None


def has_tokenizer(path: str | Path) -> bool:
    """Whether a folder holds files of a tokenizer."""
    return any(any(Path(path).expanduser().glob(pattern)) for pattern in TOKENIZER_FILES)


def read_serving(record: str | Path) -> Serving:
    """How a pair is served, as stage ``latency`` decided it: from a device's latency profile, or the card in a bundle's folder.
    `ValueError` that names file and remedy if it is missing, damaged or says nothing."""
    path = Path(record)
    if path.is_dir():
        found = read_bundle(path).card.get(KEY)
        serving = None if found is None else parse_config(Serving, found, f"{path}: card.json: {KEY}")
        remedy = "Export it again (dvc repro), or name this machine's latency profile instead."
    else:
        serving = read_profile(path).serving
        remedy = "Measure the profile again (dvc repro)."
    if serving is None:
        raise ValueError(f"{path} does not say in which number format and by which forward to serve. {remedy}")
    return serving
