"""Where a measurement comes from: commit, versions, machine. Recorded beside every number, never compared."""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED_CODE = ("runtime", "predictors", "pipelines/measuring")  # what decides what is measured
NO_LOCKS = (":(exclude,glob)**/dvc.lock",)  # DVC rewrites them while it runs
OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
PACKAGES = ("torch", "transformers", "safetensors", "numpy", "scikit-learn")


def provenance(device: dict[str, Any]) -> dict[str, Any]:
    """Commit, versions, device and date of a measurement taken now."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *NO_LOCKS)),
        "versions": versions(),
        "device": device,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries that decide how fast decoding is."""
    return {"python": python_version(), **{name: _version(name) for name in PACKAGES}}


def numerics(origin: Mapping[str, Any]) -> str:
    """Number formats of a measured pair in words."""
    return ", ".join(f"{name} in {model['dtype']}" for name, model in origin["models"].items())


def of_target_alone(origin: Mapping[str, Any]) -> bool:
    """Tell whether the measured pair has no draft."""
    return set(origin.get("models", ())) == {"target"}


def commit_of(origin: Mapping[str, Any], form: str = "{}", digits: int = 12) -> str:
    """The commit of a measurement in words, its first ``digits`` written as ``form``."""
    changed = " with uncommitted changes" if origin.get("uncommitted_changes") else ""
    return form.format((origin.get("commit") or "unknown")[:digits]) + changed


def source_hash(folders: Iterable[str], but: str = "") -> str:
    """SHA-256 over the Python files of packages or modules of this repository, ``but`` those of one; each must hold some."""
    digest = hashlib.sha256()
    for folder in folders:
        path = ROOT / folder
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        assert files, f"{folder} holds no Python files"
        for file in (one for one in files if not but or not one.is_relative_to(ROOT / but)):
            digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """What git says of this repository; ``None`` where there is none. One around a copy, or named by a hook, is another."""
    own = {name: value for name, value in os.environ.items() if name not in OF_HOOKS}
    try:
        for command in (["ls-files", "--error-unmatch", __file__], arguments):
            answer = subprocess.run(["git", *command], cwd=ROOT, env=own, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
