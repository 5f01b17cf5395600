"""Traces on disk and in memory: Parquet shards and a manifest that was written last (columns: `predictors.schema`).

Rows lie somewhere in a prompt's continuation (`PLACE_COLUMNS`) and are counted through all shards, as labels name them.
"""

import hashlib
import io
import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.bundle import CaptureContract
from predictors.config import parse_config
from predictors.sampling import SAMPLING, SamplingSettings
from predictors.schema import MANIFEST

REMEDY = "Nothing else was touched. Run the traces stage again: it rebuilds only what is missing or damaged."


@dataclass(frozen=True)
class Shard:
    """A Parquet file of traces: name, number of rows and SHA-256 of its bytes."""

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Manifest of a finished collection. ``fingerprint`` stands for its parameters."""

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
        """Return the lengths of some list columns, which every shard must have."""
        return {}

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)


Kind = TypeVar("Kind", bound=Manifest)


class TraceTable(Generic[Kind]):
    """Table of a trace's rows, in the order of its shards: all of them as `read`, or those of a split.

    ``index`` [N] holds their numbers in the whole trace; ``of``: what trace it is, as the stage calls it. Columns that are
    ``wide`` are read at their first use, as most of a trace is hidden states that most of its readers do not need.
    """

    columns: ClassVar[Mapping[str, str]]
    wide: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int]
    of: ClassVar[str]
    kind: type[Kind]

    def __init__(
        self, manifest: Kind, table: pa.Table, whole: Callable[[str], np.ndarray], index: np.ndarray | None = None
    ) -> None:
        """Hold ``table`` without the wide columns, of which ``whole`` gives all rows of the trace."""
        self.manifest, self.table, self._whole = manifest, table, whole
        self.index = np.arange(table.num_rows) if index is None else index
        self._wide: dict[str, np.ndarray] = {}

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read all rows of a finished collection. `ValueError` if the manifest is missing (collection did not finish), of another
        schema version, or incomplete; or a shard is missing, damaged or of another shape."""
        place = Path(folder) if isinstance(folder, str) else folder
        manifest = _read_manifest(place / MANIFEST, cls.kind, cls.of, cls.version)
        shards = [_read_shard(place / one.name, one, cls.columns, manifest, cls.wide) for one in manifest.shards]
        table = pa.concat_tables(shards).combine_chunks()
        return cls(manifest, table, cache(partial(_whole_column, place, manifest.shards)))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def rows(self, split: str) -> Self:
        """Select the rows of one split; `ValueError` if there are none."""
        mask_N = self.column("split") == split
        if not mask_N.any():
            raise ValueError(f"there are no traces of split {split!r}. Raise traces.{self.of}.prompts.")
        return type(self)(self.manifest, self.table.filter(pa.array(mask_N)), self._whole, self.index[mask_N])

    def column(self, name: str) -> np.ndarray:
        """Return a column [N], of lists [N, size]: a view of the table, which is not to be written to."""
        if name in self.wide:
            if name not in self._wide:
                whole = self._whole(name)
                self._wide[name] = whole if len(whole) == len(self) else whole[self.index]
            return self._wide[name]
        if pa.types.is_fixed_size_list(self.table.schema.field(name).type):
            return list_column(self.table, name)
        return np.asarray(self.table.column(name).to_numpy(zero_copy_only=False))

    @cached_property
    def settings(self) -> list[SamplingSettings]:
        """Sampling settings of the rows, ascending."""
        return [SamplingSettings(*numbers) for numbers in sorted(set(self._setting_rows))]

    @cached_property
    def setting_N(self) -> np.ndarray:
        """Number [N] of every row's setting in ``settings``."""
        places = {astuple(item): place for place, item in enumerate(self.settings)}
        return np.array([places[numbers] for numbers in self._setting_rows])

    @cached_property
    def _setting_rows(self) -> list[tuple[float, int, float, bool]]:
        columns = (self.column(name).tolist() for name in SAMPLING)
        return [(round(t, 6), int(k), round(p, 6), i) for t, k, p, i in zip(*columns, strict=True)]


def list_column(table: pa.Table, name: str) -> np.ndarray:
    """View a fixed-size list column as [rows, size], read-only and without a copy when it is one chunk."""
    parts = [
        chunk.flatten().to_numpy(zero_copy_only=True).reshape(-1, chunk.type.list_size)
        for chunk in table.column(name).chunks
        if len(chunk)
    ]
    if not parts:
        kind = table.schema.field(name).type
        return np.empty((0, kind.list_size), kind.value_type.to_pandas_dtype())
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _whole_column(folder: Path, shards: Iterable[Shard], name: str) -> np.ndarray:
    """Read a wide column of all rows."""
    read = (pq.read_table(_content(folder / shard.name, shard), columns=[name]) for shard in shards)
    return list_column(pa.concat_tables(list(read)), name)


def _content(path: Path, shard: Shard) -> io.BytesIO:
    """Read a shard's bytes, if they are the manifest's."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: this shard is missing. {REMEDY}") from None
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise ValueError(f"{path}: damaged shard ({len(content)} bytes whose SHA-256 is not the manifest's). {REMEDY}")
    return io.BytesIO(content)


def _read_shard(
    path: Path, shard: Shard, columns: Mapping[str, str], manifest: Manifest, wide: Container[str]
) -> pa.Table:
    """Read the columns of a shard that are not ``wide``."""
    content = _content(path, shard)
    try:
        file = pq.ParquetFile(content)
        schema, rows = file.schema_arrow, file.metadata.num_rows
        for problem in _mismatches(schema, rows, shard, columns, manifest.sizes()):
            raise ValueError(f"{path}: {problem}. {REMEDY}")
        return file.read([name for name in schema.names if name not in wide])
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). {REMEDY}") from error


def _mismatches(
    schema: pa.Schema, rows: int, shard: Shard, columns: Mapping[str, str], sizes: Mapping[str, int]
) -> Iterator[str]:
    if missing := [name for name in columns if name not in schema.names]:
        yield f"column {', '.join(missing)} is missing"
    if rows != shard.rows:
        yield f"{rows} rows where the manifest says {shard.rows}"
    for name, size in sizes.items():
        kind = schema.field(name).type
        if not pa.types.is_fixed_size_list(kind) or kind.list_size != size:
            yield f"column {name} is {kind}, not a list of {size}"


def _read_manifest(path: Path, kind: type[Kind], of: str, known_version: int) -> Kind:
    try:
        record = dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ValueError(
            f"{path} is missing: collection did not finish. Run the traces stage again; it goes on where it stopped."
        ) from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged manifest ({error}). Run the traces stage again.") from error
    if (found := record.get("of", of)) != of:
        raise ValueError(f"{path}: these are traces of {found}, and those of {of} are needed here. Name their folder.")
    version = record.get("schema_version")
    if version != known_version:
        raise ValueError(
            f"{path}: traces of schema version {version}, this program reads version {known_version}. "
            "Collect the traces again."
        )
    known = {field.name: record[field.name] for field in fields(kind) if field.name in record}
    return parse_config(kind, known, str(path))
