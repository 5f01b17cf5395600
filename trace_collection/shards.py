"""Shards of traces on disk: deterministic bytes, written whole or not at all, stamped with what they were made from.

Every shard carries the fingerprint of the parameters and inputs and the capture contract in its Parquet metadata, so a run
that starts again keeps finished shards of the same fingerprint and rewrites everything else. The manifest is written last.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from predictors.schema import MANIFEST

_SCALARS = {
    "string": pa.string(),
    "int32": pa.int32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}
_ELEMENTS = {**_SCALARS, "float16": pa.float16()}


def trace_schema(
    columns: Mapping[str, str], sizes: Mapping[str, int], version: int, fingerprint: str, contract: dict[str, Any]
) -> pa.Schema:
    """Arrow schema of a shard: ``columns`` by kind, a list's length by its word in ``sizes`` (``state<float16>``)."""
    fields = []
    for name, kind in columns.items():
        word, _, element = kind.partition("<")
        if element:
            fields.append(pa.field(name, pa.list_(_ELEMENTS[element.rstrip(">")], sizes[word])))
        else:
            fields.append(pa.field(name, _SCALARS[kind]))
    metadata = {
        "schema_version": str(version),
        "fingerprint": fingerprint,
        "contract": json.dumps(contract, sort_keys=True),
    }
    return pa.schema(fields, metadata=metadata)


def shard_name(index: int) -> str:
    return f"part-{index:05d}.parquet"


def write_shard(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Write rows next to ``path`` and move them there in one step."""
    columns = {name: [row[name] for row in rows] for name in schema.names}
    table = pa.table(
        {name: pa.array(columns[name], type=schema.field(name).type) for name in schema.names}, schema=schema
    )
    partial = path.with_suffix(".partial")
    pq.write_table(
        table,
        partial,
        compression="zstd",
        use_dictionary=False,
        write_page_checksum=True,
        column_encoding={"state.list.element": "BYTE_STREAM_SPLIT"},
    )
    os.replace(partial, path)


def finished(path: Path, fingerprint: str) -> bool:
    """Whether ``path`` is a whole, undamaged shard of this very collection."""
    try:
        metadata = pq.read_table(path, page_checksum_verification=True).schema.metadata or {}
    except (OSError, pa.ArrowInvalid):
        return False
    return metadata.get(b"fingerprint", b"").decode() == fingerprint


def write_manifest(folder: Path, names: list[str], facts: dict[str, Any]) -> int:
    """Remove shards that do not belong and describe those that do; the last step of a collection. Returns their rows."""
    for stale in set(folder.glob("part-*")) - {folder / name for name in names}:
        stale.unlink()
    shards = [
        {
            "name": name,
            "rows": pq.read_metadata(folder / name).num_rows,
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in names
    ]
    rows: int = sum(shard["rows"] for shard in shards)
    manifest = {**facts, "num_rows": rows, "shards": shards}
    partial = folder / (MANIFEST + ".partial")
    partial.write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
    os.replace(partial, folder / MANIFEST)
    return rows
