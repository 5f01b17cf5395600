"""Stage ``pair``: resolve a pair's models and pin their files.

Writes ``pair.json``, a function of the parameters, and next to it ``target`` where that is made from a GGUF file.

The number format of the pair's traces is fixed here, once: whatever machine collects, and whatever format serves there, traces of
one pair can be put into one table.

    draftwright pair --pair smollm2 data/smollm2/pair
"""

import argparse
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from tqdm import tqdm
from transformers.quantizers import AutoHfQuantizer

from pipelines.cli import module_of
from pipelines.drafter.recipe import FOLDER, DrafterRecipe
from pipelines.gguf_file import GgufFile, convert
from pipelines.outputs import file_sha256, replacing, write_json
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import DTYPES, FACTS, TEXTS, resolve_model, weight_files
from predictors.config import Checked, Constraint, not_empty, one_of
from runtime.device import native_dtype
from runtime.eagle3.checkpoint import drafter_config, read_checkpoint
from runtime.identity import require_shared_vocabulary
from runtime.pair import has_tokenizer, load_config, load_model, load_tokenizer, loading

AUTO = "auto"
DEVICES = r"(cpu|cuda|hpu|meta|mps|xpu)(:\d+)?"
PLACES = rf"auto|balanced|balanced_low_0|sequential|disk|\d+|{DEVICES}"
QUANTIZED = dict.fromkeys(("quant_method", "load_in_4bit", "load_in_8bit")).keys()
PLACEMENT = ("device_map", "draft_device", "quantization")


def _are_places(value: Any) -> bool:
    return all(
        re.fullmatch(PLACES, str(place)) for place in (value.values() if isinstance(value, Mapping) else [value])
    )


known_device = Constraint("be a device, as cuda:1", lambda value: re.fullmatch(DEVICES, value) is not None)
known_map = Constraint("be auto, balanced, sequential, a device, or a mapping of modules to devices", _are_places)
known_quantization = Constraint(f"have one of {', '.join(QUANTIZED)}", lambda value: bool(QUANTIZED & value.keys()))


@dataclass(frozen=True)
class Models(Checked):
    """Section ``models``: local paths or hub ids of a target and, if it has one, its draft.

    The target may be a GGUF file instead: ``{gguf: PATH}``, or ``{package: NAME, gguf: FILE}`` of an installed package; the draft
    an EAGLE-3 drafter, or one that stage ``drafter`` trains: ``{train: eagle3}`` (`DrafterRecipe`). A revision is a branch, tag
    or commit on the hub; null takes the newest. ``dtype`` is the number format of the pair's traces; ``auto``: the one that these
    weights were given before, and else this machine's native one. ``device_map``, ``draft_device`` and ``quantization``: as
    `runtime.ModelPair.load` takes them, for every stage. ``check_memory``: refuse what does not fit this machine before anything
    is fetched.
    """

    target: Annotated[str, not_empty] | GgufFile
    draft: Annotated[str, not_empty] | DrafterRecipe | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    dtype: Annotated[str, one_of(AUTO, *DTYPES)] = AUTO
    device_map: Annotated[object, known_map] = None
    draft_device: Annotated[str, known_device] | None = None
    quantization: Annotated[Mapping[str, Any], known_quantization] | None = None
    check_memory: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("output", type=Path, help="folder to write")


def run(args: argparse.Namespace) -> None:
    models = load_parameters(Models, args.pair, "models", args.params)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if models.check_memory:
        module_of("plan").require_room(args.pair, args.params)  # it decides nothing of what is written here
    facts = resolve_pair(models, args.output)
    known = _earlier_dtype(args.output / FACTS, facts["sha256"])
    native = str(native_dtype(device)).removeprefix("torch.")
    if "gguf" not in facts:
        shutil.rmtree(args.output / "target", ignore_errors=True)
    placement = {name: getattr(models, name) for name in PLACEMENT if getattr(models, name) is not None}
    facts |= {"placement": placement} if placement else {}
    facts |= {"drafter": FOLDER} if isinstance(models.draft, DrafterRecipe) else {}
    facts["dtype"] = (known or native) if models.dtype == AUTO else models.dtype
    write_json(args.output / FACTS, {"pair": args.pair, **facts})


def resolve_pair(models: Models, output: Path) -> dict[str, Any]:
    """Find a pair's files, fetching them from the hub where needed, and make ``output/target`` of a GGUF file; refuse models
    over different vocabularies, and leave ``output`` alone then."""
    draft = models.draft if isinstance(models.draft, str) else None
    if not isinstance(models.target, GgufFile):
        return _resolved(models, {"target": models.target, "draft": draft}, {})
    path = models.target.path()
    origin = {"file": models.target.gguf, "package": models.target.package, "sha256": file_sha256(path)}
    with replacing(output / "target") as folder:
        convert(path, folder)
        facts = _resolved(models, {"target": "target", "draft": draft}, {"target": folder})
    return facts | {"gguf": {"target": origin}}


def _resolved(models: Models, given: Mapping[str, str | None], made: Mapping[str, Path]) -> dict[str, Any]:
    """Facts of models by their names; those ``made`` here lie in these folders."""
    names = {key: name for key, name in given.items() if name is not None}
    revisions = {"target": models.target_revision, "draft": models.draft_revision}
    folders = {key: made.get(key) or resolve_model(name, revisions[key]) for key, name in names.items()}
    tokenizers, sizes = {}, {}
    for key, folder in folders.items():
        sizes[key] = _vocabulary_size(folder)
        tokenizers[key] = load_tokenizer(folder) if has_tokenizer(folder) else None
    if "draft" in names:
        require_shared_vocabulary(tokenizers["target"], tokenizers["draft"], sizes["target"], sizes["draft"])
    owner = next((key for key, tokenizer in tokenizers.items() if tokenizer is not None), None)
    if owner is None:
        raise ValueError(f"no tokenizer files in {', '.join(names.values())}: prompts cannot be encoded. Add them.")
    return {
        **names,
        "tokenizer": names[owner],
        # A hub snapshot's folder is named after its commit.
        "revisions": {
            key: None if key in made or os.path.isdir(os.path.expanduser(names[key])) else one.name
            for key, one in folders.items()
        },
        "vocabulary": sizes,
        "sha256": {key: _hashes(folder) for key, folder in folders.items()},
    }


def _earlier_dtype(path: Path, sha256: dict[str, dict[str, str]]) -> str | None:
    """The format that an earlier run, on whatever machine, fixed for these very weights."""
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    known = facts.get("dtype") if isinstance(facts, dict) and facts.get("sha256") == sha256 else None
    return known if known in DTYPES else None


def _vocabulary_size(folder: Path) -> int:
    """Of a model whose weights are all there, which takes no memory to see. Of quantised ones only the package is looked for:
    what reads them needs the device."""
    if not weight_files(folder):
        raise FileNotFoundError(f"{folder} has no *.safetensors weights; convert the model with save_pretrained first.")
    for name in weight_files(folder):
        try:
            with safe_open(folder / name, "pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder / name}: damaged weights ({error}). Fetch them, or save them, again.") from error
    if drafter_config(folder) is not None:
        return read_checkpoint(folder).vocabulary_size
    config = load_config(folder)
    with loading(folder):
        if quantized := getattr(config, "quantization_config", None):
            AutoHfQuantizer.from_config(quantized).validate_environment()
    if not quantized:
        load_model(folder, torch.device("meta"), torch.bfloat16, {"": "meta"})
    return int(config.get_text_config().vocab_size)


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted({path for pattern in (*TEXTS, *weight_files(folder)) for path in folder.glob(pattern)})
    return {path.name: file_sha256(path) for path in tqdm(paths, desc=f"hash {folder.name}", unit="file", leave=False)}
