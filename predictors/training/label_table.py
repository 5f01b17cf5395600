"""The label table: one Parquet file with labels, the arrays that replay a round, and the feature states.

Shape suffixes: N rows, G γ_max, S state size, C scalars.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from predictors.config import parse_config
from predictors.contract import CaptureContract
from predictors.features import FeatureSpec, assemble
from predictors.training.trace_table import list_column

LABELS_VERSION = 2
METADATA_KEY = b"draftwright"
SPLITS = ("train", "validation", "test")
KEPT_COLUMNS = (
    "prompt_id",
    "document",
    "slice",
    "split",
    "drafted",
    "accepted",
    "newest_token_source",
    "previous_drafted",
    "previous_accepted",
    "confidence",
    "entropy",
    "state",
)
BRANCH = "branch"  # source of a newest token that was hit at a branch point
REMEDY = "Run the labels stage again."


@dataclass(frozen=True)
class LabelMetadata:
    """What the labels mean: γ, sampling temperature, state layout, contract, and the hash of the traces they come from."""

    gamma: int
    gamma_max: int
    temperature: float
    layers: tuple[int, ...]
    hidden_size: int
    embedding_size: int
    traces_sha256: str
    contract: dict[str, Any]
    schema_version: int = LABELS_VERSION

    def encode(self) -> dict[bytes, bytes]:
        return {METADATA_KEY: json.dumps(asdict(self), sort_keys=True).encode()}

    @staticmethod
    def decode(schema: pa.Schema, where: str) -> "LabelMetadata":
        record = (schema.metadata or {}).get(METADATA_KEY)
        if record is None:
            raise ValueError(f"{where} is not a label table. {REMEDY}")
        return parse_config(LabelMetadata, json.loads(record), where)

    def feature_spec(self, feature_set: str) -> FeatureSpec:
        return FeatureSpec(feature_set, self.layers, self.hidden_size, self.embedding_size, self.gamma)

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)

    @property
    def contract_sha256(self) -> str:
        """SHA-256 of the contract's identity and serving range; provenance is recorded, never compared."""
        compared = {key: self.contract[key] for key in ("identity", "serving_range")}
        return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class LabelTable:
    """Label rows in memory. ``accepted`` counts up to ``drafted``; both may exceed the label's γ. ``trace_set``: which of the
    labelled trace sets the row is from."""

    metadata: LabelMetadata
    document: np.ndarray
    slice: np.ndarray
    split: np.ndarray
    label: np.ndarray
    accepted: np.ndarray
    trace_set: np.ndarray
    newest_token_source: np.ndarray
    previous_drafted: np.ndarray
    previous_accepted: np.ndarray
    confidence_NG: np.ndarray
    entropy_NG: np.ndarray
    state_NS: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    @cached_property
    def labels(self) -> Tensor:
        """Classes [N] as int64."""
        return torch.from_numpy(self.label.astype(np.int64))

    @cached_property
    def survived(self) -> np.ndarray:
        """Whether the row's round follows a branch that survived [N] bool: its tokens were drafted beside the round before."""
        return np.asarray(self.newest_token_source == BRANCH)

    @cached_property
    def branched(self) -> np.ndarray:
        """Whether the row is of a trace set in which branches were drafted [N] bool."""
        return np.isin(self.trace_set, np.unique(self.trace_set[self.survived]))

    def of_decoding(self, branches: bool) -> "LabelTable":
        """The rows that a chain's decoder meets, or a branch-parallel one: the other's rounds behind a block accepted whole are
        easier than any of its own that it drafts for.

        Raises
        ------
        ValueError
            If chains are asked for, and every trace set is of branches.
        """
        if branches:
            return self.take(np.flatnonzero(self.branched | (self.newest_token_source != "bonus")))
        if self.branched.all():
            raise ValueError(
                "every trace set is of branches. Label traces with drafting 'chain' too, for decoders of chains."
            )
        return self.take(np.flatnonzero(~self.branched))

    @property
    def branch_hit(self) -> float:
        """Of the blocks accepted whole in trace sets of branches, the share behind which a branch was hit.

        Raises
        ------
        ValueError
            If no row follows a branch.
        """
        hits = int(self.survived.sum())
        misses = int((self.branched & (self.newest_token_source == "bonus")).sum())
        if not hits:
            raise ValueError("no label row follows a branch. Label traces with drafting 'branches', or set branch_hit.")
        return hits / (hits + misses)

    def rows(self, split: str) -> "LabelTable":
        """The rows of one split.

        Raises
        ------
        ValueError
            If the split has no row.
        """
        rows = np.flatnonzero(self.split == split)
        if not len(rows):
            raise ValueError(f"the label table has no row of split {split!r}. Collect prompts for that split.")
        return self.take(rows)

    def take(self, rows: np.ndarray) -> "LabelTable":
        return LabelTable(self.metadata, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def features(self, spec: FeatureSpec) -> Tensor:
        """Raw feature rows [N, S + C] in float32, by the function that serving uses."""
        return assemble(
            spec,
            torch.from_numpy(np.array(self.state_NS)),
            torch.from_numpy(self.previous_drafted.astype(np.int64)),
            torch.from_numpy(self.previous_accepted.astype(np.int64)),
            torch.from_numpy(self.confidence_NG[:, 0].copy()),
            torch.from_numpy(self.entropy_NG[:, 0].copy()),
        )


COLUMNS = tuple(field.name for field in fields(LabelTable) if field.name != "metadata")


def read_labels(path: str | Path) -> LabelTable:
    """Read a label table; a missing, damaged or foreign file is a ValueError that names it."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist. {REMEDY}") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: not a readable Parquet file ({error}). {REMEDY}") from error
    metadata = LabelMetadata.decode(table.schema, str(path))
    if metadata.schema_version != LABELS_VERSION:
        raise ValueError(f"{path}: labels of schema version {metadata.schema_version}, not {LABELS_VERSION}. {REMEDY}")
    require_disjoint_splits(table.column("document").to_pylist(), table.column("split").to_pylist(), "document")
    columns = {name: table.column(name).to_numpy() for name in COLUMNS if name not in _LISTS}
    lists = {name: list_column(table, column) for name, column in _LISTS.items()}
    return LabelTable(metadata, **columns, **lists)


_LISTS = {"confidence_NG": "confidence", "entropy_NG": "entropy", "state_NS": "state"}


def require_disjoint_splits(keys: Sequence[str], splits: Sequence[str], what: str) -> None:
    """Raise ValueError if one ``what`` (a document or prompt) stands in two splits: that would leak into validation."""
    seen: dict[str, str] = {}
    for key, split in zip(keys, splits, strict=True):
        if seen.setdefault(key, split) != split:
            raise ValueError(
                f"{what} {key!r} stands in split {seen[key]!r} and in split {split!r}: validation would leak. "
                "Split prompts by document and collect the traces again."
            )
