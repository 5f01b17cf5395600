"""Materials with less to learn from: labels of fewer training documents, or texts with fewer of the target's states.

Whole training documents are kept or dropped, and of one seed a smaller share lies within every larger one. Validation and test
documents are always all there. Shape suffixes: N rows of a trace.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.schema import MANIFEST
from predictors.training.labelling import chains, tokens, trees
from predictors.training.labelling.table import Labels, write_labels
from predictors.training.predictor import Materials
from predictors.training.root_table import RootTable
from predictors.training.text_table import ROOT, STATES, TextTable
from trace_collection.shards import shard_name, write_manifest

SOURCES: dict[str, tuple[str, str, Any]] = {  # family -> kind of labels, folder of traces, their table
    "head": (chains.KIND, "texts", TextTable),
    "stop": (tokens.KIND, "texts", TextTable),
    "tree": (trees.KIND, "trees", RootTable),
}


@dataclass(frozen=True)
class Lessons:
    """What a ``family`` learns from: the labelled rows of a trace in ``materials``."""

    family: str
    materials: Materials

    @cached_property
    def table(self) -> Any:
        _, folder, kind = SOURCES[self.family]
        return kind.read(getattr(self.materials, folder))

    @cached_property
    def labels(self) -> Labels:
        return self.materials.labels_of(SOURCES[self.family][0], self.table.manifest)

    def documents(self, share: float, seed: int) -> np.ndarray:
        """Names of a random ``share`` of the training documents, at least one."""
        if not 0 < share <= 1:
            raise ValueError(f"a share of documents must lie in (0, 1], got {share}.")
        names = np.unique(self.table.column("document")[self.table.column("split") == "train"])
        return np.random.default_rng(seed).permutation(names)[: max(1, round(share * len(names)))]

    def training_rows(self, documents: np.ndarray) -> int:
        """Labelled rows of these training documents."""
        return int(self._labelled_L("train", documents).sum())

    def of_documents(self, documents: np.ndarray, folder: Path) -> Materials:
        """The materials with labels, in ``folder``, of only these training documents."""
        kept = ~self._labelled_L("train") | self._labelled_L("train", documents)
        return self._labelled(replace(self.labels, table=self.labels.table.filter(pa.array(kept))), folder)

    def of_states(self, layers: Sequence[int], embedding: bool, folder: Path) -> Materials:
        """The materials with texts, in ``folder``, as if only these ``layers`` had been stored, with the newest token's embedding
        or without; of no state at all there is one number, 0."""
        table, manifest = self.table, self.table.manifest
        numbers = [
            np.arange(manifest.hidden_size) + manifest.feature_layers.index(i) * manifest.hidden_size for i in layers
        ]
        if embedding:
            numbers.append(np.arange(len(manifest.feature_layers) * manifest.hidden_size, manifest.sizes()[ROOT]))
        states_NS = table.column(ROOT)[:, np.concatenate(numbers)] if numbers else np.zeros((len(table), 1), np.float16)
        size = {"embedding_size": manifest.embedding_size if embedding else int(not layers)}
        record = json.loads((self.materials.texts / MANIFEST).read_text())
        _write_trace(record | {"feature_layers": list(layers), **size}, table, states_NS, folder)
        labels = replace(self.labels, traces_sha256=TextTable.read(folder).manifest.content_hash)
        return replace(self._labelled(labels, folder), texts=folder)

    def _labelled_L(self, split: str, documents: np.ndarray | None = None) -> np.ndarray:
        """Whether a label's row is of a split, and of one of these documents."""
        row_L = np.asarray(self.labels.table.column("row"))
        kept_L = self.table.column("split")[row_L] == split
        return kept_L if documents is None else kept_L & np.isin(self.table.column("document")[row_L], documents)

    def _labelled(self, labels: Labels, folder: Path) -> Materials:
        write_labels(labels, folder / f"{labels.kind}.parquet")
        return replace(self.materials, labels=folder)


def _write_trace(record: dict, table: TextTable, states_NS: np.ndarray, folder: Path) -> None:
    """One shard with these states in place of its own, and the manifest."""
    shard, whole = shard_name(0), table.table
    for name, values in ((ROOT, states_NS), (STATES, table.column(STATES))):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        whole = whole.append_column(name, lists)
    pq.write_table(whole, folder / shard)
    write_manifest(folder, [shard], record)
