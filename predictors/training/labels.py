"""Labels of the H-RAD head, from round traces collected at γ_max ≥ γ.

    accepted' = min(accepted, γ)        label = 0 (none) if accepted' = 0,   2 (all) if accepted' = γ,   1 (some) otherwise

A row is dropped iff ``drafted < γ``: the token budget or an end-of-sequence token cut that draft before the outcome at γ
was known. Such a row must go even where a rejection was seen before the cut, because otherwise cut drafts would only enter
as rejections and the classes would be biased towards them.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.contract import CaptureContract, ServingRange, require_same_identity
from predictors.network import CLASSES
from predictors.training.label_table import KEPT_COLUMNS, SPLITS, LabelMetadata, require_disjoint_splits
from predictors.training.trace_table import TraceTable, list_column

DROPPED_SHORT, DROPPED_TEMPERATURE = "draft cut short of gamma", "other temperature"


@dataclass(frozen=True)
class LabelConfig:
    """``gamma``: draft length the classes speak of, at most the traces' γ_max. ``temperature``: rows of which to label."""

    gamma: int
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.gamma < 2:
            raise ValueError(f"gamma must be >= 2, got {self.gamma}: a draft of one token is never accepted in part.")
        if self.temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}.")


class LabelReport:
    """Counts of kept rows by split, slice and class, and of dropped rows by reason."""

    def __init__(self) -> None:
        self.kept: Counter[tuple[str, str, int]] = Counter()
        self.dropped: Counter[str] = Counter()
        self.documents: dict[str, set[str]] = {split: set() for split in SPLITS}

    def classes(self, split: str, slice_: str | None = None) -> dict[str, int]:
        """Rows by class name in a split, or in one slice of it."""
        counts = dict.fromkeys(CLASSES, 0)
        for (row_split, row_slice, label), count in self.kept.items():
            if row_split == split and slice_ in (None, row_slice):
                counts[CLASSES[label]] += count
        return counts

    def to_json(self) -> dict[str, Any]:
        slices = sorted({slice_ for _, slice_, _ in self.kept})
        return {
            "rows": {split: sum(self.classes(split).values()) for split in SPLITS},
            "documents": {split: len(self.documents[split]) for split in SPLITS},
            "classes": {split: self.classes(split) for split in SPLITS},
            "slices": {slice_: {split: self.classes(split, slice_) for split in SPLITS} for slice_ in slices},
            "dropped": {reason: self.dropped[reason] for reason in (DROPPED_SHORT, DROPPED_TEMPERATURE)},
        }


def label_of(accepted: np.ndarray, gamma: int) -> np.ndarray:
    """Classes (module docstring) of accepted counts."""
    return np.where(accepted <= 0, 0, np.where(accepted >= gamma, 2, 1)).astype(np.int8)


def write_labels(sets: Sequence[TraceTable], config: LabelConfig, path: Path) -> LabelReport:
    """Label all rows of all trace ``sets`` and write the table to ``path``, one shard in memory at a time.

    Raises
    ------
    ValueError
        If γ exceeds a γ_max, the sets are of different pairs, features or γ_max, no row has the temperature, a state is not
        finite, a document or prompt stands in two splits, or a split or a class of the train split has no row.
    """
    contract = _joint_contract(sets)
    gamma_max = sets[0].manifest.gamma_max
    if config.gamma > gamma_max:
        raise ValueError(
            f"gamma {config.gamma} exceeds the traces' gamma_max {gamma_max}. Lower labels.gamma, or collect "
            "with a larger gamma_max."
        )
    metadata = _metadata(sets, config, _restrict(contract, config.temperature))
    report = LabelReport()
    keys: dict[str, list[str]] = {"document": [], "prompt_id": [], "split": []}
    writer: pq.ParquetWriter | None = None
    try:
        for number, traces, shard in ((*entry, shard) for entry in enumerate(sets) for shard in entry[1].shards()):
            table = _label_shard(shard, config, report, str(traces.folder))
            table = table.append_column("trace_set", pa.array(np.full(table.num_rows, number, np.int8)))
            for name, values in keys.items():
                values += table.column(name).to_pylist()
            table = table.replace_schema_metadata(metadata.encode())
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=DICTIONARY)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
    for name in ("document", "prompt_id"):
        require_disjoint_splits(keys[name], keys["split"], name.removesuffix("_id"))
    _require_rows(report, config)
    return report


DICTIONARY = ["prompt_id", "document", "slice", "split", "newest_token_source"]


def _joint_contract(sets: Sequence[TraceTable]) -> CaptureContract:
    """The sets' one contract; its serving range holds the settings and contexts of all."""
    first, *others = sets
    joint = first.manifest.capture_contract(f"{first.folder}: contract")
    for traces in others:
        contract = traces.manifest.capture_contract(f"{traces.folder}: contract")
        remedy = f"Collect both with one pair and the same layers; {first.folder} was labelled with it."
        require_same_identity(contract.identity, joint.identity, str(traces.folder), remedy)
        if traces.manifest.gamma_max != first.manifest.gamma_max:
            raise ValueError(
                f"{traces.folder} has gamma_max {traces.manifest.gamma_max} and {first.folder} {first.manifest.gamma_max}: rows "
                "of one table are drafts of one length. Set both traces sections' gamma_max alike."
            )
        _require_same_dtype(first.folder, joint.serving_range.dtype, traces.folder, contract.serving_range.dtype)
        joint = replace(joint, serving_range=_joint_range(joint.serving_range, contract.serving_range))
    return joint


def _require_same_dtype(one: Path, first: str, other: Path, second: str) -> None:
    """`ValueError` naming both folders and the remedy, unless both traces are of one number format."""
    if first != second:
        raise ValueError(
            f"{one} holds traces of {first} targets and {other} of {second} ones: they do not go into one table. The traces' "
            "number format is the pair's (dtype in its pair.json): delete the folder of the other format and run the stage that "
            "collects it (traces) again."
        )


def _joint_range(one: ServingRange, other: ServingRange) -> ServingRange:
    return ServingRange(
        dtype=one.dtype,
        settings=tuple(dict.fromkeys((*one.settings, *other.settings))),
        min_context=min(one.min_context, other.min_context),
        max_context=max(one.max_context, other.max_context),
    )


def traces_sha256(sets: Sequence[TraceTable]) -> str:
    """Identity of the traces: a single set's own hash, or one over all."""
    hashes = [traces.manifest.content_hash for traces in sets]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _metadata(sets: Sequence[TraceTable], config: LabelConfig, contract: CaptureContract) -> LabelMetadata:
    manifest = sets[0].manifest
    return LabelMetadata(
        gamma=config.gamma,
        gamma_max=manifest.gamma_max,
        temperature=config.temperature,
        layers=manifest.feature_layers,
        hidden_size=manifest.hidden_size,
        embedding_size=manifest.embedding_size,
        traces_sha256=traces_sha256(sets),
        contract=contract.to_json(),
    )


def _restrict(contract: CaptureContract, temperature: float) -> CaptureContract:
    """The contract whose serving range holds only the settings that are labelled: a head is calibrated for no others."""
    captured = contract.serving_range.settings
    settings = tuple(row for row in captured if abs(row[0] - temperature) < 1e-6)
    if not settings:
        raise ValueError(
            f"no traces at temperature {temperature}; captured: {', '.join(str(row[0]) for row in captured)}. "
            "Change labels.temperature, or collect at that temperature."
        )
    return replace(contract, serving_range=replace(contract.serving_range, settings=settings))


def _label_shard(shard: pa.Table, config: LabelConfig, report: LabelReport, where: str) -> pa.Table:
    wanted = np.abs(shard.column("temperature").to_numpy() - config.temperature) < 1e-6
    known = shard.column("drafted").to_numpy() >= config.gamma
    report.dropped[DROPPED_TEMPERATURE] += int((~wanted).sum())
    report.dropped[DROPPED_SHORT] += int((wanted & ~known).sum())
    table = shard.select(KEPT_COLUMNS).filter(pa.array(wanted & known)).combine_chunks()
    if not np.isfinite(list_column(table, "state")).all():
        raise ValueError(f"{where}: a feature state is not finite (overflow of float16). Collect the traces again.")
    labels = label_of(table.column("accepted").to_numpy(), config.gamma)
    columns = [table.column(name).to_pylist() for name in ("split", "slice", "document")]
    report.kept.update(zip(columns[0], columns[1], labels.tolist(), strict=True))
    for split, document in zip(columns[0], columns[2], strict=True):
        if split not in SPLITS:
            raise ValueError(f"{where}: unknown split {split!r}; known: {', '.join(SPLITS)}.")
        report.documents[split].add(document)
    return table.append_column("label", pa.array(labels))


def _require_rows(report: LabelReport, config: LabelConfig) -> None:
    for split in SPLITS:
        counts = report.classes(split)
        empty = [name for name, count in counts.items() if not count]
        if not empty:
            continue
        message = (
            f"no row of class {', '.join(map(repr, empty))} in split {split!r} at gamma {config.gamma} "
            f"(rows: {counts}; dropped: {report.to_json()['dropped']}). Collect more prompts or change labels.gamma."
        )
        if split == "train" or len(empty) == len(CLASSES):
            raise ValueError(message)
        warnings.warn(f"{message} Its metrics leave that class out.", stacklevel=3)
