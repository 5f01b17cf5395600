"""Outputs appear whole or not at all: a stage that fails leaves the earlier result as it was."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path to write a file or folder to, and move it to ``path`` when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    _remove(partial)
    try:
        yield partial
        if partial.is_dir():
            _remove(path)
        partial.replace(path)
    finally:
        _remove(partial)


def write_json(path: Path, record: Any) -> None:
    """Write indented JSON with sorted keys; numbers that are not finite are a bug."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(record, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path, remedy: str = "Run the stage that writes it again.", kind: type = dict) -> Any:
    """Read a JSON file that holds a ``kind`` of value; `ValueError` with the ``remedy`` where it is missing, damaged or not
    that."""
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, kind):
            raise ValueError(f"it holds a {type(found).__name__}, not a {kind.__name__}")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). {remedy}") from error
    return found


def digest(value: Any) -> str:
    """SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
