"""Where files are: a pair's below ``data/PAIR``, unless the command line says otherwise; traces on object storage, too.

Also what later stages read of this machine (description, latency profile) and of the pair folder (``pair.json``, models).
"""

import argparse
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.outputs import read_json

if TYPE_CHECKING:
    from predictors.latency.profile import LatencyProfile

FACTS = "pair.json"
DTYPES = ("float32", "bfloat16", "float16")
TEXTS = (  # of a model, at the top of its repository: configuration, index of the weights, tokenizer
    *(
        "config.json",
        "generation_config.json",
        "model*.json",
        "tokenizer*",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    *("vocab*", "merges*", "chat_template*", "spiece*", "sentencepiece*"),
)
ADAPTER = "adapter_config.json"
NAMES = "Name a folder, a hub model as ORG/NAME (its revision stands in target_revision), or a file as {gguf: PATH}."
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def add_place_arguments(parser: argparse.ArgumentParser, places: Mapping[str, str]) -> None:
    """``--data``, ``--device``, and an option for each of ``places``: folders below the pair's own."""
    parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (default: %(default)s)")
    parser.add_argument("--device", type=Path, help="JSON file of the device stage (default: device.json there)")
    for name, place in places.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=place_of, help=f"default: {place} below the pair's folder")


def place_of(text: str) -> Path:
    """A path, or the folder on object storage that a URL such as ``s3://bucket/traces`` names, with a path's methods."""
    if "://" not in text:
        return Path(text)
    try:
        from upath import UPath

        folder: Any = UPath(text, use_listings_cache=False)
        folder.fs.ls(folder.drive or folder.path)
    except ImportError as error:
        raise ArgumentTypeError(f"{text} needs {error.name}: pip install 'draftwright[s3]'.") from error
    except Exception as error:  # each storage has errors of its own
        remedy = "Name a bucket that exists, and credentials in the environment (AWS_ACCESS_KEY_ID, …)."
        raise ArgumentTypeError(f"{text} cannot be reached ({type(error).__name__}: {error}). {remedy}") from error
    return folder


def fill_in(args: argparse.Namespace, places: Mapping[str, str]) -> None:
    """Set what the command line left out; `ValueError` if this machine was never described."""
    for name, place in places.items():
        if getattr(args, name) is None:
            setattr(args, name, args.data / args.pair / place)
    args.device = args.device or args.data / "device.json"
    if not args.device.is_file():
        raise ValueError(f"{args.device} is missing: run dvc repro (or make repro) first.")


def read_device(path: Path) -> dict[str, Any]:
    """The machine's description; its ``slug`` names folders. `ValueError` if ``path`` describes none."""
    remedy = f"Describe this machine again: draftwright device {path}"
    device: dict[str, Any] = read_json(path, remedy)
    slug = device.get("slug")
    if not isinstance(slug, str) or not slug or Path(slug).name != slug:
        raise ValueError(f"{path} describes no machine: its slug is {slug!r}. {remedy}")
    return device


def read_device_profile(folder: Path, device: str) -> "LatencyProfile":
    """The profile that stage ``latency`` left in ``folder`` for the device of that slug; says so on stderr where it is
    noisy. `ValueError` if there is none, or it cannot be read."""
    from predictors.latency.profile import read_profile

    profile = read_profile(folder / f"{device}.json")
    warn_of_noise(profile)
    return profile


def warn_of_noise(profile: "LatencyProfile") -> None:
    """One line on stderr for a noisy profile."""
    from predictors.latency.soundness import noise_warning

    warning = noise_warning(profile)
    if warning is not None:
        print(f"warning: {warning}", file=sys.stderr)


@dataclass(frozen=True)
class PairLocation:
    """Local folders of a pair's models, of which it may lack the ``draft``, and tokenizer, the number format of its traces, and
    ``placement``: where models lie and how the target is quantised, by the names of `ModelPair.load`. ``trains_drafter``: the
    draft is what stage ``drafter`` writes."""

    target: str
    draft: str | None
    tokenizer: str
    dtype: str
    placement: Mapping[str, Any] = field(default_factory=dict)
    trains_drafter: bool = False

    @property
    def models(self) -> dict[str, Any]:
        """What `ModelPair.load` takes; `ValueError` if the drafter is yet to be trained."""
        if self.trains_drafter and self.draft and not (Path(self.draft) / "config.json").is_file():
            raise ValueError(f"{self.draft} holds no drafter yet. Run the drafter stage (dvc repro).")
        return {"target": self.target, "draft": self.draft, "tokenizer": self.tokenizer, **self.placement}


def read_facts(folder: Path) -> dict[str, Any]:
    """``pair.json`` of a pair folder."""
    remedy = "Run the pair stage (again)."
    facts: dict[str, Any] = read_json(folder / FACTS, remedy)
    missing = {"target", "tokenizer", "revisions"} - facts.keys()
    if missing or "target" not in facts.get("revisions", facts):
        raise ValueError(f"{folder / FACTS}: lacks {', '.join(sorted(missing)) or 'the revision of target'}. {remedy}")
    return facts


def model_of(folder: Path, facts: Mapping[str, Any], role: str) -> str:
    """The ``target`` or ``draft`` of a pair folder: a folder in it where the pair stage wrote one, else the path or hub id that
    it was named by."""
    return str(folder / facts[role] if role in facts.get("gguf", {}) else facts[role])


def read_pair(folder: Path) -> PairLocation:
    """Where a pair's models and tokenizer lie on this machine; `ValueError` if its number format was never fixed."""
    facts = read_facts(folder)
    dtype = facts.get("dtype")
    if dtype not in DTYPES:
        raise ValueError(
            f"{folder / FACTS}: dtype, the number format of the pair's traces, is {dtype!r} and must be one of "
            f"{', '.join(DTYPES)}. Run the pair stage again."
        )
    placement = facts.get("placement", {})
    given = {role: (model_of(folder, facts, role), commit) for role, commit in facts["revisions"].items()}
    folders = {role: str(resolve_model(*one)) for role, one in given.items()}
    tokenizer = folders["target" if facts["tokenizer"] == facts["target"] else "draft"]
    trained = facts.get("drafter")
    drafting = folders.get("draft") if trained is None else str((folder / trained).resolve())
    return PairLocation(folders["target"], drafting, tokenizer, dtype, placement, trained is not None)


def resolve_model(name: str, revision: str | None = None) -> Path:
    """The folder of a local model, or of a hub model's snapshot (fetched unless it is there already)."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        if not (path / "config.json").is_file():
            told = "; merge_and_unload() the adapter there, and save the model" * (path / ADAPTER).is_file()
            raise FileNotFoundError(f"{path} is no model folder: it has no config.json{told}.")
        return path.resolve()
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"model folder {name} does not exist. {NAMES}")
    from huggingface_hub import snapshot_download

    try:
        texts = snapshot_download(name, revision=revision, allow_patterns=list(TEXTS))
        folder = Path(texts)  # named after its commit
        if lacking := [one for one in weight_files(folder) or [WEIGHTS] if not (folder / one).is_file()]:
            snapshot_download(name, revision=folder.name, allow_patterns=lacking)
        return folder
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model {name!r} is no local folder and cannot be fetched from the hub: {reason.rstrip('.')}. {NAMES}"
        ) from error


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files that hold the weights, as transformers chooses them: one, or those that the index names.
    Where there is neither, all that the folder holds. `ValueError` for a damaged index."""
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        return sorted(set(read_json(folder / INDEX, "Fetch the model again.").get("weight_map", {}).values()))
    return [WEIGHTS] if (folder / WEIGHTS).is_file() else sorted(path.name for path in folder.glob("*.safetensors"))
