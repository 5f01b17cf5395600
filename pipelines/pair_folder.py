"""A pair folder, as the pair stage leaves it: ``pair.json`` and where the models and the tokenizer lie."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.outputs import read_json

FACTS = "pair.json"
DTYPES = ("float32", "bfloat16", "float16")
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


@dataclass(frozen=True)
class PairLocation:
    """Local folders of a pair's models, of which it may lack the ``draft``, and tokenizer, the number format of its traces, and
    ``placement``: where models lie and how the target is quantised, by the names of `ModelPair.load`."""

    target: str
    draft: str | None
    tokenizer: str
    dtype: str
    placement: Mapping[str, Any] = field(default_factory=dict)

    @property
    def models(self) -> dict[str, Any]:
        """What `ModelPair.load` takes."""
        return {"target": self.target, "draft": self.draft, "tokenizer": self.tokenizer, **self.placement}


def read_facts(folder: Path) -> dict[str, Any]:
    """``pair.json`` of a pair folder."""
    remedy = "Run the pair stage (again)."
    facts: dict[str, Any] = read_json(folder / FACTS, remedy)
    wanted = {"source", "target", "tokenizer", "draft" if facts.get("source") == "builtin" else "revisions"}
    missing = wanted - facts.keys()
    if missing or "target" not in facts.get("revisions", facts):
        raise ValueError(f"{folder / FACTS}: lacks {', '.join(sorted(missing)) or 'the revision of target'}. {remedy}")
    return facts


def read_pair(folder: Path) -> PairLocation:
    """Where a pair's models and tokenizer lie on this machine; `ValueError` if its number format was never fixed."""
    facts = read_facts(folder)
    dtype = facts.get("dtype")
    if dtype not in DTYPES:
        raise ValueError(
            f"{folder / FACTS}: dtype, the number format of the pair's traces, is {dtype!r} and must be one of "
            f"{', '.join(DTYPES)}. Run the pair stage again: trained models are kept."
        )
    placement = facts.get("placement", {})
    if facts["source"] == "builtin":
        places = {name: str((folder / facts[name]).resolve()) for name in ("target", "draft", "tokenizer")}
        return PairLocation(**places, dtype=dtype, placement=placement)
    folders = {name: str(resolve_model(facts[name], commit)) for name, commit in facts["revisions"].items()}
    tokenizer = folders["target" if facts["tokenizer"] == facts["target"] else "draft"]
    return PairLocation(folders["target"], folders.get("draft"), tokenizer, dtype, placement)


def resolve_model(name: str, revision: str | None = None) -> Path:
    """The folder of a local model, or of a hub model's snapshot (fetched unless it is there already)."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} is no model folder: it has no config.json.")
        return path.resolve()
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"model folder {name} does not exist.")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(MODEL_FILES)))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"model {name!r} is no local folder and could not be fetched from the hub: {reason}"
        ) from error
