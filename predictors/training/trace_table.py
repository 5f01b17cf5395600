"""Traces on disk: Parquet shards and a manifest that was written last (columns: `predictors.schema`)."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.config import parse_config
from predictors.contract import CaptureContract, ContractError
from predictors.schema import MANIFEST, ROUND_COLUMNS, ROUND_TRACES_VERSION

REMEDY = "Nothing else was touched. Delete that file and run the traces stage again: it rebuilds only what is missing."


@dataclass(frozen=True)
class Shard:
    """One Parquet file: name, number of rows and SHA-256 of its bytes."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a finished collection says about itself. ``fingerprint`` stands for its parameters."""

    schema_version: int
    fingerprint: str
    num_rows: int
    contract: dict[str, Any]
    shards: tuple[Shard, ...]

    @property
    def content_hash(self) -> str:
        """SHA-256 over the fingerprint and the shards' own hashes: the identity of the traces."""
        lines = [self.fingerprint, *(shard.sha256 for shard in self.shards)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def sizes(self) -> dict[str, int]:
        """Lengths of some list columns, which every shard must have."""
        raise NotImplementedError


@dataclass(frozen=True)
class TraceManifest(Manifest):
    """Of round traces."""

    gamma_max: int
    feature_layers: tuple[int, ...]
    hidden_size: int
    embedding_size: int

    @property
    def state_size(self) -> int:
        return len(self.feature_layers) * self.hidden_size + self.embedding_size

    def sizes(self) -> dict[str, int]:
        return {"state": self.state_size, "confidence": self.gamma_max}

    def capture_contract(self, where: str) -> CaptureContract:
        contract = CaptureContract.from_json(self.contract, where)
        if contract.identity.layer_ids != self.feature_layers:
            raise ContractError(
                f"{where}: layer_ids {list(contract.identity.layer_ids)} are not the manifest's feature_layers "
                f"{list(self.feature_layers)}. Collect the traces again."
            )
        return contract


Kind = TypeVar("Kind", bound=Manifest)


class ShardedTable(Generic[Kind]):
    """A folder of traces, read one verified shard at a time.

    Parameters
    ----------
    folder
        Holds ``manifest.json`` and the shards that it names.

    Raises
    ------
    ValueError
        If the manifest is missing (collection did not finish), of another schema version, or incomplete.
    """

    columns: ClassVar[Mapping[str, str]]
    version: ClassVar[int]
    kind: type[Kind]

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder / MANIFEST, self.kind, self.version)

    def shards(self) -> Iterator[pa.Table]:
        """Tables with the table's ``columns``; a shard that is missing, damaged or of another shape is a ValueError."""
        for shard in self.manifest.shards:
            yield self._read(shard)

    def _read(self, shard: Shard) -> pa.Table:
        path = self.folder / shard.name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise ValueError(f"{path}: this shard is missing. {REMEDY}") from None
        if hashlib.sha256(content).hexdigest() != shard.sha256:
            raise ValueError(
                f"{path}: damaged shard ({len(content)} bytes whose SHA-256 is not the manifest's). {REMEDY}"
            )
        try:
            table = pq.read_table(io.BytesIO(content))
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{path}: not a readable Parquet file ({error}). {REMEDY}") from error
        problem = self._mismatch(table, shard)
        if problem:
            raise ValueError(f"{path}: {problem}. {REMEDY}")
        return table

    def _mismatch(self, table: pa.Table, shard: Shard) -> str | None:
        missing = [name for name in self.columns if name not in table.column_names]
        if missing:
            return f"column {', '.join(missing)} is missing"
        if table.num_rows != shard.rows:
            return f"{table.num_rows} rows where the manifest says {shard.rows}"
        for name, size in self.manifest.sizes().items():
            kind = table.schema.field(name).type
            if not pa.types.is_fixed_size_list(kind) or kind.list_size != size:
                return f"column {name} is {kind}, not a list of {size}"
        return None


class TraceTable(ShardedTable[TraceManifest]):
    """Round traces: shards with the columns of `ROUND_COLUMNS`."""

    columns = ROUND_COLUMNS
    version = ROUND_TRACES_VERSION
    kind = TraceManifest


def list_column(table: pa.Table, name: str) -> np.ndarray:
    """A fixed-size list column as [rows, size], read-only and without a copy when it is one chunk."""
    parts = [
        chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, chunk.type.list_size)
        for chunk in table.column(name).chunks
        if len(chunk)
    ]
    if not parts:
        kind = table.schema.field(name).type
        return np.empty((0, kind.list_size), kind.value_type.to_pandas_dtype())
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_manifest(path: Path, kind: type[Kind], known_version: int) -> Kind:
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: collection did not finish. Run the traces stage again; it goes on where it stopped."
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: damaged manifest ({error}). Run the traces stage again.") from error
    version = record.get("schema_version")
    if version != known_version:
        raise ValueError(
            f"{path}: traces of schema version {version}, this program reads version {known_version}. "
            "Collect the traces again."
        )
    known = {name: record[name] for name in (field.name for field in fields(kind)) if name in record}
    return parse_config(kind, known, str(path))
