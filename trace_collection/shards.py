"""Shards of traces on disk or object storage: deterministic bytes, written whole or not at all, with what they were made from.

Every shard carries the fingerprint of the parameters and inputs and the capture contract in its Parquet metadata, so a run
that starts again keeps finished shards of the same fingerprint and rewrites everything else. The manifest is written last.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.schema import MANIFEST

Rows = dict[str, Any]  # the columns of some rows: arrays [rows, ...], or one value for all of them
STRING_BYTES = 32  # about; names repeat, and repeats take next to nothing


def trace_schema(
    columns: Mapping[str, str], sizes: Mapping[str, int], version: int, fingerprint: str, contract: dict[str, Any]
) -> pa.Schema:
    """Make the Arrow schema of a shard: ``columns`` by kind, a list's length by its word in ``sizes`` (``state<float16>``)."""
    fields = []
    for name, kind in columns.items():
        word, _, element = kind.rstrip(">").partition("<")
        one = pa.type_for_alias(element or word)
        fields.append(pa.field(name, pa.list_(one, sizes[word]) if element else one))
    metadata = {
        "schema_version": str(version),
        "fingerprint": fingerprint,
        "contract": json.dumps(contract, sort_keys=True),
    }
    return pa.schema(fields, metadata=metadata)


def shard_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Turn rows given one by one into columns."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def bytes_of(schema: pa.Schema) -> int:
    """Bound the bytes that a row takes."""
    return sum(map(_bytes, schema.types))


def _bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * _bytes(kind.value_type)
    return STRING_BYTES if pa.types.is_string(kind) else max(1, kind.bit_width // 8)


def require_disk(folder: Path, name: str, rows: int, bytes_per_row: int, max_gigabytes: float) -> None:
    """Print what a trace may need; `ValueError` if that and the pair's other traces exceed ``max_gigabytes``, or it and the copy
    that DVC's cache takes exceed the disk's free space."""
    need = rows * bytes_per_row
    others = _held(path for path in folder.parent.glob("*/part-*") if path.parent != folder)
    allowed = cap = max_gigabytes * 1e9 - others
    parent = folder
    if isinstance(folder, Path):
        parent = next(place for place in [folder, *folder.absolute().parents] if place.exists())
        allowed = min(cap, (shutil.disk_usage(parent).free + _held(folder.glob("part-*"))) / 2)
    print(
        f"{name}: at most {rows} rows of {bytes_per_row} bytes = {need / 1e6:.0f} MB; the pair's other traces take "
        f"{others / 1e6:.0f} MB; {allowed / 1e6:.0f} MB may be taken",
        flush=True,
    )
    if need > allowed:
        bound, remedy = (
            (f"traces.max_gigabytes = {max_gigabytes:g} leaves", "raise traces.max_gigabytes")
            if allowed == cap
            else (f"half the free space of {parent}'s disk (DVC keeps a copy) is", "make room on that disk")
        )
        raise ValueError(
            f"traces.{name} need up to {need / 1e9:.3g} GB, and {bound} {allowed / 1e9:.3g} GB. Collect fewer prompts or hidden "
            f"states or shorter continuations, or {remedy}."
        )


def _held(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def write_shard(path: Path, parts: Sequence[Rows], schema: pa.Schema) -> None:
    """Write rows to ``path`` in one step."""
    columns = [_column([part for part in parts if part], field) for field in schema]
    lists = [field for field in schema if pa.types.is_fixed_size_list(field.type)]
    halves = [field.name for field in lists if field.type.value_type == pa.float16()]
    content = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema),
        content,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in halves},
    )
    _put(path, content.getvalue().to_pybytes())


def _put(path: Path, content: bytes) -> None:
    """Write a file that nobody sees half of: moved there on a disk, one request on object storage."""
    if not isinstance(path, Path):
        path.write_bytes(content)
        return
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _column(parts: Sequence[Rows], field: pa.Field) -> pa.Array:
    """Join a column of all parts; one value stands for all rows of its part."""
    if not parts:
        return pa.array([], field.type)
    lengths = (next(len(values) for values in part.values() if np.ndim(values)) for part in parts)
    columns = ((part[field.name], length) for part, length in zip(parts, lengths, strict=True))
    joined = np.concatenate([one if np.ndim(one) else np.repeat(one, length) for one, length in columns])
    if not pa.types.is_fixed_size_list(field.type):
        return pa.array(joined, field.type)
    kind, size = field.type.value_type, field.type.list_size
    flat = np.ascontiguousarray(joined, kind.to_pandas_dtype()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, kind), size)


def require_kind(folder: Path, kind: str) -> None:
    """Raise `ValueError` if ``folder`` holds a finished collection of another kind than ``kind``, which would be replaced."""
    try:
        held = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return
    other = held.get("of", kind) if isinstance(held, dict) else kind
    if other != kind:
        raise ValueError(
            f"{folder} holds traces of {other}, not of {kind}. Name another folder, or delete that one first."
        )


def finished(path: Path, fingerprint: str) -> bool:
    """Tell whether ``path`` is a whole, undamaged shard of the collection with this ``fingerprint``."""
    try:
        content = pa.BufferReader(path.read_bytes())
        metadata = pq.read_table(content, page_checksum_verification=True).schema.metadata or {}
    except (OSError, pa.ArrowInvalid):
        return False
    return metadata.get(b"fingerprint", b"").decode() == fingerprint


def write_manifest(folder: Path, names: list[str], facts: dict[str, Any]) -> int:
    """Remove shards that do not belong and describe those that do; the last step of a collection. Returns their rows."""
    for stale in [path for path in folder.glob("part-*") if path.name not in names]:
        stale.unlink()
    shards, rows, held = [], 0, 0
    for name in names:
        content = (folder / name).read_bytes()
        count = pq.read_metadata(pa.BufferReader(content)).num_rows
        shards.append({"name": name, "rows": count, "sha256": hashlib.sha256(content).hexdigest()})
        rows, held = rows + count, held + len(content)
    manifest = {**facts, "num_rows": rows, "bytes_per_row": round(held / max(1, rows), 1), "shards": shards}
    _put(folder / MANIFEST, (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())
    return rows
