"""Labels: what a predictor is to predict at positions of a trace; on disk one Parquet file per kind. Rows hold no features.

Column ``row`` is the index of a label's features in the trace (rows are counted through its shards); the file's metadata
names that trace, so that labels are never joined to another one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

LABELS_VERSION = 3
METADATA_KEY = b"draftwright"
REMEDY = "Run the labels stage again."


@dataclass(frozen=True)
class Labels:
    """Labels of one ``kind``: the ``table`` with column ``row``, the ``traces_sha256`` they belong to, ``facts`` that
    readers need, and a ``report`` of counts for people."""

    kind: str
    table: pa.Table
    traces_sha256: str
    facts: dict[str, Any]
    report: dict[str, Any]


def write_labels(labels: Labels, path: Path) -> None:
    record = {
        "schema_version": LABELS_VERSION,
        "kind": labels.kind,
        "traces_sha256": labels.traces_sha256,
        "facts": labels.facts,
        "report": labels.report,
    }
    metadata = {METADATA_KEY: json.dumps(record, sort_keys=True).encode()}
    pq.write_table(labels.table.replace_schema_metadata(metadata), path, compression="zstd")


def read_labels(path: Path, kind: str, traces_sha256: str) -> Labels:
    """Read the labels of ``kind`` in ``path``. `ValueError` if the file is missing, holds another kind or version, or labels
    other traces."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. {REMEDY}") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is no readable label table ({error}). {REMEDY}") from error
    record = json.loads((table.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    for name, wanted in (("schema_version", LABELS_VERSION), ("kind", kind), ("traces_sha256", traces_sha256)):
        if record.get(name) != wanted:
            raise ValueError(f"{path}: {name} is {record.get(name)!r} where {wanted!r} is needed. {REMEDY}")
    return Labels(kind, table, record["traces_sha256"], record["facts"], record["report"])
