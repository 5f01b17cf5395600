"""Root traces in memory (columns: `predictors.schema`), and the shape of their labels.

Shape suffixes: N roots, D draws, K rules, A actions, S state size, C captured scalars.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from predictors.contract import CaptureContract
from predictors.latency.actions import Traffic
from predictors.sampling import SamplingSettings
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION
from predictors.selection.features import SCALARS, SelectionSpec
from predictors.training.trace_table import Manifest, ShardedTable, list_column


@dataclass(frozen=True)
class RootManifest(Manifest):
    """Of root traces: what the features are, and what the labels are of."""

    selection_spec: SelectionSpec
    rules: tuple[str, ...]
    draws: int
    parameters: dict[str, Any]

    def sizes(self) -> dict[str, int]:
        spec = self.selection_spec
        labels = self.draws * len(self.rules) * len(spec.actions)
        return {
            "state": spec.state_size,
            "scalars": len(SCALARS),
            "nodes": len(spec.actions),
            "efficiency": labels,
        }

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)


class RootTraces(ShardedTable[RootManifest]):
    """Root traces: shards with the columns of `ROOT_COLUMNS`."""

    columns = ROOT_COLUMNS
    version = ROOT_TRACES_VERSION
    kind = RootManifest


class RootTable:
    """Roots of some splits. Arrays are in the order of the rows; ``actions`` are the columns' A."""

    def __init__(self, manifest: RootManifest, table: pa.Table) -> None:
        self.manifest = manifest
        self.actions = manifest.selection_spec.actions
        self._table = table

    @staticmethod
    def read(folder: str | Path) -> "RootTable":
        """All roots of a finished collection; errors as `ShardedTable`'s."""
        traces = RootTraces(folder)
        return RootTable(traces.manifest, pa.concat_tables(list(traces.shards())))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def rows(self, split: str) -> "RootTable":
        """The roots of one split; `ValueError` if there are none."""
        mask = pa.array(self.column("split") == split)
        part = self._table.filter(mask)
        if not part.num_rows:
            raise ValueError(f"there are no roots of split {split!r}. Raise traces.roots.prompts.")
        return RootTable(self.manifest, part)

    def column(self, name: str) -> np.ndarray:
        """A scalar column."""
        return np.asarray(self._table.column(name).to_numpy(zero_copy_only=False))

    @cached_property
    def states_NS(self) -> np.ndarray:
        return list_column(self._table, "state")

    @cached_property
    def scalars_NC(self) -> np.ndarray:
        return list_column(self._table, "scalars")

    @cached_property
    def efficiency_NDKA(self) -> np.ndarray:
        """Expected emitted tokens of a step, by draw: as many draws as all these roots have."""
        shape = (len(self), self.manifest.draws, len(self.manifest.rules), len(self.actions))
        whole_NDKA = list_column(self._table, "efficiency").reshape(shape).astype(np.float64)
        drawn_D = np.isfinite(whole_NDKA).any(axis=(2, 3)).all(axis=0)
        return whole_NDKA[:, drawn_D]

    def continuation(self, row: int) -> list[int]:
        """What follows the prompt at a root, up to its newest token."""
        tokens: list[int] = list_column(self._table.slice(row, 1), "continuation")[0].tolist()
        return [token for token in tokens if token >= 0]

    @cached_property
    def nodes_NA(self) -> np.ndarray:
        """Distinct nodes of each action's trees, mean over the root's draws."""
        return list_column(self._table, "nodes").astype(np.float64)

    @cached_property
    def fed_NA(self) -> np.ndarray:
        """Of them those on branch levels that a further level hangs under."""
        return list_column(self._table, "fed").astype(np.float64)

    def traffic(self) -> tuple[Traffic, ...]:
        """Every action's mean nodes."""
        nodes_A, fed_A = self.nodes_NA.mean(axis=0), self.fed_NA.mean(axis=0)
        return tuple(Traffic(float(nodes), float(fed)) for nodes, fed in zip(nodes_A, fed_A, strict=True))

    @cached_property
    def settings(self) -> list[SamplingSettings]:
        """The sampling settings, ascending."""
        return [SamplingSettings(*numbers) for numbers in sorted(set(self._setting_rows))]

    @cached_property
    def setting_N(self) -> np.ndarray:
        """Place of every row's setting in ``settings``."""
        places = {(item.temperature, item.top_k, item.top_p): place for place, item in enumerate(self.settings)}
        return np.array([places[numbers] for numbers in self._setting_rows])

    @cached_property
    def _setting_rows(self) -> list[tuple[float, int, float]]:
        columns = (self.column(name).tolist() for name in ("temperature", "top_k", "top_p"))
        return [(round(t, 6), int(k), round(p, 6)) for t, k, p in zip(*columns, strict=True)]
