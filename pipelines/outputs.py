"""Outputs appear whole or not at all: a stage that fails leaves the earlier result as it was. And what stands in the place of one
that needs a draft model, where a pair has none. Texts are read in UTF-8, or in UTF-16 where a mark says so; others are refused.

`STAGES` says by command what needs one, and which arguments are its outputs: stages after it read these as absent. Arms that need
one are left out by `pipelines.measuring.arms`.
"""

import argparse
import codecs
import hashlib
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


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


NOT_APPLICABLE = "not applicable: the pair has no draft"
MARKER = "not_applicable.json"  # alone in a folder
RECORD = {"family": None, "reason": NOT_APPLICABLE}
DRAFTLESS = (None, "guess")  # families of predictors; None: bundle auto, which no family fits
STAGES: Mapping[str, tuple[Callable[[argparse.Namespace], bool], tuple[str, ...]]] = {
    "traces": (lambda args: args.of != "guesses", ("out",)),
    "labels": (lambda args: True, ("output", "report")),
    "replay": (lambda args: True, ("output",)),
    "trial": (lambda args: needs_draft(args.pair, args.bundle.name, args.params), ("output",)),
}  # stage ``fit`` asks by predictor


def needs_draft(pair: str, predictor: str, params: Path) -> bool:
    """Tell whether a bundle serves only pairs with a draft."""
    from pipelines.parameters import read_pair, read_predictor

    if predictor not in (read_pair(pair, params).get("fit") or {}):
        return False
    return read_predictor(pair, predictor, params).get("family") not in DRAFTLESS


def draftless(pair: str, params: Path) -> bool:
    """Tell whether the pair of that name in the parameter file is a target alone."""
    from pipelines.parameters import read_pair  # YAML, which commands of a serving host go without

    models = read_pair(pair, params).get("models")
    return isinstance(models, dict) and not models.get("draft")


def left_out(args: argparse.Namespace) -> bool:
    """Tell whether a command does not apply to its pair: then its outputs say so, else none says so any more."""
    needs, names = STAGES.get(args.command, (None, ()))
    if needs is None:
        return False
    return noted(draftless(args.pair, args.params) and needs(args), *(getattr(args, name) for name in names))


def noted(missing: bool, *outputs: Path | None) -> bool:
    """``missing``, which the ``outputs`` say, or say no more."""
    for path in filter(None, outputs):
        if not missing:
            if absent(path):
                (path / MARKER).unlink()
            continue
        with replacing(path) as partial:
            if path.suffix == ".parquet":
                import pandas as pd

                pd.DataFrame().to_parquet(partial)
            else:
                write_json(partial if path.suffix == ".json" else partial / MARKER, RECORD)
        print(f"{path}: {NOT_APPLICABLE}")
    return missing


def absent(folder: Path) -> bool:
    """Tell whether what a stage would write there is not applicable."""
    return (folder / MARKER).is_file()


UTF8 = "Save it in UTF-8 (iconv --from-code ITS_ENCODING --to-code UTF-8), and not compressed."
POINTER = b"version https://git-lfs.github.com"


def decoded(file: IO[bytes], where: str) -> str:
    """A text with plain line ends; `ValueError`, which begins with ``where``, for another encoding."""
    try:
        text = b"".join(utf8_lines(file)).decode("utf-8-sig")
    except UnicodeError as error:
        raise ValueError(f"{where}: no text in UTF-8 ({error}). {UTF8}") from error
    return io.StringIO(text, newline=None).read()


def read_text(path: Path) -> str:
    """As `decoded`."""
    with path.open("rb") as file:
        return decoded(file, str(path))


def utf8_lines(file: IO[bytes]) -> Iterable[bytes]:
    """Of a text, in UTF-8; `UnicodeError` where its first line tells another encoding, or that it is no text."""
    lines: Iterator[bytes] = iter(file)
    first = next(lines, b"")
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        lines = io.BytesIO(b"".join([first, *lines]).decode("utf-16").encode())
        first = next(lines, b"")
    if b"\0" in first:
        raise UnicodeError("it holds NUL characters, as UTF-32 does, and UTF-16 without its mark")
    if first.startswith(POINTER):
        raise UnicodeError("it is a pointer of Git LFS: git lfs pull fetches the file")
    return itertools.chain([first], lines)
