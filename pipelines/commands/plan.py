"""Say what a pair needs before anything is downloaded: memory while decoding and while drawing texts, and disk for its traces.

Models are made from their configurations on torch's meta device, where weights have shapes and no memory. A configuration stands
in the pair's block under ``config``, or lies on this machine. Caches and workspaces follow from the formulas of `runtime.memory`,
disk from the rows that the collectors would write.

    draftwright plan --pair my-pair --device-memory 80
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from pipelines.drafter.recipe import DrafterRecipe
from pipelines.gguf_file import GgufFile, read_config
from pipelines.hardware import available_memory
from pipelines.parameters import add_pair_arguments, load_parameters, read_pair
from pipelines.prompt_table import MEASURED_SPLITS, Prompt
from pipelines.stages.drafter import tapped_layers, written_config
from pipelines.stages.pair import AUTO, Models
from pipelines.stages.prompts import PromptParameters
from pipelines.stages.traces import CONFIGS, SECTION, TraceLimits, collector
from runtime import ModelPair
from runtime.adapter import LanguageModel
from runtime.causal_model import CausalLanguageModel
from runtime.device import native_dtype
from runtime.eagle3.checkpoint import drafter_config, is_eagle3
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.hugging_face import require_layers
from runtime.memory import Work, model_memory, unloaded_pair
from runtime.pair import load_config, parse_dtype
from trace_collection.collection import Collector, hidden_size, models_of, require_context
from trace_collection.shards import bytes_of, trace_schema
from trace_collection.trajectories import MOST_ROWS

PARTS = ("weights", "cache", "workspace")
REMEDIES = {"decoding": "prompts.longest", "drawing texts": "traces.texts.prompts_per_shard and that of trees"}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
BITS = {"load_in_4bit": 4, "load_in_8bit": 8}  # as bitsandbytes says it
Needs = Mapping[str, tuple[int, ...]]  # bytes of `PARTS`, by what is done


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="its type (default: %(default)s)")
    parser.add_argument("--device-memory", type=float, metavar="GB", help="refuse what takes more")


def run(args: argparse.Namespace) -> None:
    pair = meta_pair(args.pair, args.params)
    for name, one in pair.models.items():
        count, dtype = num_parameters(one), str(one.dtype).removeprefix("torch.")
        print(f"{name}: {count:,} parameters in {dtype}, {one.context_limit} tokens of context")
    made = collectors(pair, args.pair, args.params)
    found = needs(pair, made, read_pair(args.pair, args.params), args.device)
    for name, parts in found.items():
        sizes = ", ".join(f"{part} {held / 1e9:.3f}" for part, held in zip(PARTS, parts, strict=True))
        print(f"{name}: {sum(parts) / 1e9:.3f} GB ({sizes})")
    disk = {name: trace_bytes(one) for name, one in made.items()}
    print("GB on disk: " + ", ".join(f"{name} {taken / 1e9:.3f}" for name, taken in disk.items()))
    wrong = [] if args.device_memory is None else too_large(found, args.device_memory * 1e9)
    most = load_parameters(TraceLimits, args.pair, SECTION, args.params, besides=CONFIGS).max_gigabytes
    if sum(disk.values()) > most * 1e9:
        taken = f"Traces may take {sum(disk.values()) / 1e9:.2f} GB, and traces.max_gigabytes is {most:g}"
        wrong.append(f"{taken}: raise it, or lower traces.texts.prompts.")
    if wrong:
        raise ValueError("\n".join([f"pair {args.pair} cannot run like this.", *wrong]))


def require_room(name: str, params: Path) -> None:
    """`ValueError` with both numbers where a pair needs more memory than this machine has free, on all of its devices where the
    pair's block spreads it. A pair of unknown configurations is not refused."""
    models = load_parameters(Models, name, "models", params)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    spread = place.type == "cuda" and (models.device_map or models.draft_device)
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())] if spread else [place]
    try:
        pair = meta_pair(name, params, native_dtype(place) if models.dtype == AUTO else torch.bfloat16, fetch=True)
    except FileNotFoundError:
        return
    sections = read_pair(name, params)
    made = collectors(pair, name, params) if {"prompts", "traces"} <= sections.keys() else {}
    wrong = too_large(needs(pair, made, sections, place.type), sum(map(available_memory, devices)))
    if wrong:
        remedy = "Where another machine runs it, or less would do, set models.check_memory to false."
        raise ValueError("\n".join([f"pair {name} does not fit this machine.", *wrong, remedy]))


def meta_pair(name: str, params: Path, dtype: torch.dtype = torch.bfloat16, fetch: bool = False) -> ModelPair:
    """The pair of that name without memory, in its own number format, or where that is auto in ``dtype``. ``fetch``:
    configurations that are not on this machine, and nothing else.

    `FileNotFoundError` where a configuration is not known; `ValueError` where the runtime does not serve it. Whether both models
    share a vocabulary, stage ``pair`` says.
    """
    models = load_parameters(Models, name, "models", params)
    number = dtype if models.dtype == AUTO else parse_dtype(models.dtype)
    known, where = read_pair(name, params).get("config") or {}, f"{params}: pairs.{name}.config"
    given = {"target": models.target, "draft": models.draft}
    configs: dict[str, Any] = {
        role: _configuration(model, known.get(role), f"{where}.{role}", fetch)
        for role, model in given.items()
        if model and not isinstance(model, DrafterRecipe)
    }
    if isinstance(models.draft, DrafterRecipe):
        configs["draft"] = _drafter(models.draft, configs["target"].get_text_config(), number)
    quantization = models.quantization or getattr(configs["target"], "quantization_config", None) or {}
    bits = quantization.get("bits") or next((count for key, count in BITS.items() if quantization.get(key)), None)
    return unloaded_pair(number, **configs, bits=bits)


def _configuration(
    name: str | GgufFile, fields: Mapping[str, Any] | None, where: str, fetch: bool
) -> PretrainedConfig | Mapping[str, Any]:
    """Of the model's folder or GGUF file, of the ``fields`` in the parameter file, or of the hub's cache; ``fetch``: or of the
    hub. An EAGLE-3 drafter's is a mapping."""
    if isinstance(name, GgufFile):
        return read_config(name.path())
    folder = Path(os.path.expanduser(name))
    drafter = drafter_config(folder) or (fields if fields is not None and is_eagle3(fields) else None)
    if drafter is not None:
        return drafter
    if fields is None or folder.is_dir():
        try:
            return load_config(folder if folder.is_dir() else name, local_files_only=not fetch)
        except ValueError as error:
            if (folder / "config.json").is_file():
                raise
            lacking = f"{where} is missing, and model {name} is not on this machine"
            raise FileNotFoundError(f"{lacking}. Copy model_type and the sizes of its config.json there.") from error
    try:
        plain = AutoConfig.for_model(fields["model_type"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: transformers knows no family by the model_type in {fields!r}.") from error
    text, own = fields.get("text_config", fields), getattr(plain, "text_config", plain)
    unknown = [one for one in text if not hasattr(own, one)]
    missing = [one for one in SIZES if not {one, own.attribute_map.get(one)} & text.keys()]
    if unknown or missing:
        raise ValueError(f"{where}: unknown {unknown}, missing {missing}. Take them from the model's config.json.")
    return type(plain)(**{field: value for field, value in fields.items() if field != "model_type"})


def _drafter(recipe: DrafterRecipe, config: PretrainedConfig, dtype: torch.dtype) -> Mapping[str, Any]:
    """The configuration of what ``recipe`` trains for a target of this ``config``."""
    layers = tapped_layers(config.num_hidden_layers)
    return written_config(min(recipe.vocabulary, config.vocab_size), config, layers, dtype)


def num_parameters(model: LanguageModel) -> int:
    """Numbers that a model of a meta pair has."""
    if isinstance(model, Eagle3Drafter):
        return model.checkpoint.num_parameters
    assert isinstance(model, CausalLanguageModel)
    return sum(part.numel() for part in model.model.parameters())


def collectors(pair: ModelPair, name: str, params: Path) -> dict[str, Collector]:
    """What would collect each trace, with as many and as long prompts as there may be; `ValueError` if they do not fit."""
    parameters = load_parameters(PromptParameters, name, "prompts", params)
    longest = max(
        parameters.max_tokens if source.cut == "window" else parameters.longest for source in parameters.sources
    )
    prompts = [
        Prompt(f"{split}/{number}", "", "", "", split, "", [0] * longest)
        for split in MEASURED_SPLITS
        for number in range(getattr(parameters, split))
    ]
    made: dict[str, Collector] = {}
    for one in models_of(pair).values() if pair.draft is not None else ():
        require_layers(one.model, (one.num_layers,))
    for of in ["guesses"] if pair.draft is None else CONFIGS:
        made[of] = collector(of, pair, load_parameters(CONFIGS[of], name, f"{SECTION}.{of}", params), prompts)
        require_context(made[of])
    return made


def needs(pair: ModelPair, made: Mapping[str, Collector], sections: Mapping[str, Any], device: str) -> Needs:
    """Bytes on a type of device while a request is decoded, and while the target draws the texts of traces."""
    longest = max((_longest(one) for one in made.values()), default=0)
    new = max(sections.get(name, {}).get("max_new_tokens", 0) for name in ("measure", "tune", "trial"))
    request = Work(longest + new, longest)
    found = {"decoding": _held(pair, {"target": request, "draft": request}, device)}
    drawing = [one for name, one in made.items() if name != "guesses"]
    if drawing:
        drawn = max(_together(one) * (_longest(one) + one.new_tokens) for one in drawing)
        parts = _held(pair, {"target": Work(drawn, longest), "draft": Work(0, 0, 0)}, device)
        found["drawing texts"] = *parts[:2], parts[2] + max(map(_kept, drawing))
    return found


def too_large(found: Needs, memory: float) -> list[str]:
    """Of all that does not fit, both numbers and what makes it less."""
    return [
        f"{name}: {sum(parts) / 1e9:.2f} GB, and there are {memory / 1e9:.2f}: use a larger device or more of them"
        + (f", or lower {REMEDIES[name]}." if parts[0] <= memory else ".")
        for name, parts in found.items()
        if sum(parts) > memory
    ]


def trace_bytes(one: Collector) -> int:
    """Bytes of a whole trace at most."""
    row = bytes_of(trace_schema(one.columns, one.sizes, one.version, "", {}))
    return len(one.jobs) * one.rows_per_job * row


def _held(pair: ModelPair, work: Mapping[str, Work], device: str) -> tuple[int, ...]:
    held = [model_memory(role, model, work[role], device) for role, model in pair.models.items()]
    return tuple(sum(getattr(one, part) for one in held) for part in PARTS)


def _longest(one: Collector) -> int:
    return max(len(prompt.tokens) for _, prompt in one.jobs)


def _together(one: Collector) -> int:
    """Texts that are drawn at the same time."""
    most = max(1, MOST_ROWS // (_longest(one) + one.new_tokens))
    return min(one.config.prompts_per_shard, len(one.jobs), most)


def _kept(one: Collector) -> int:
    """Bytes of what the target said of texts that are drawn together, where that is kept."""
    target: Any = one.pair.target
    states = len(one.taps) * hidden_size(target)
    numbers = one.new_tokens * (target.vocabulary_size + states) + _longest(one) * states
    return _together(one) * numbers * target.dtype.itemsize if one.keeps_said else 0
