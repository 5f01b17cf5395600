"""Root traces in memory, joined with their labels (`predictors.training.labelling.trees`). Columns: `predictors.schema`.

Shape suffixes: N roots, D draws, K rules, A actions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictors.actions import Action, Traffic
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION
from predictors.training.labelling import Labels
from predictors.training.trace_table import Manifest, TraceTable
from predictors.tree_choice import SCALARS, SelectionSpec


@dataclass(frozen=True)
class RootManifest(Manifest):
    """Manifest of root traces: the definitions of features and labels."""

    selection_spec: SelectionSpec
    rules: tuple[str, ...]
    draws: int

    def sizes(self) -> dict[str, int]:
        spec = self.selection_spec
        labels = self.draws * len(self.rules) * len(spec.actions)
        return {"state": spec.state_size, "scalars": len(SCALARS), "nodes": len(spec.actions), "efficiency": labels}


class RootTable(TraceTable[RootManifest]):
    """Table of the roots of some splits. Arrays are in the order of the rows; ``actions`` are the columns' A."""

    columns = ROOT_COLUMNS
    version = ROOT_TRACES_VERSION
    of = "trees"
    kind = RootManifest

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.manifest.selection_spec.actions

    @cached_property
    def efficiency_NDKA(self) -> np.ndarray:
        """Expected emitted tokens of a step [N, D, K, A], by draw: as many draws as all these roots have."""
        shape = (len(self), self.manifest.draws, len(self.manifest.rules), len(self.actions))
        whole_NDKA = self.column("efficiency").reshape(shape).astype(np.float64)
        drawn_D = np.isfinite(whole_NDKA).any(axis=(2, 3)).all(axis=0)
        return whole_NDKA[:, drawn_D]

    def labelled(self, labels: Labels) -> "RootTable":
        """Take the labelled rows, with their labels; these are of the same traces."""
        rows = labels.table.column("row")
        joined = self.table.take(rows).append_column("mean", labels.table.column("mean"))
        return RootTable(self.manifest, joined, self._whole, self.index[rows.to_numpy()])

    @property
    def mean_NKA(self) -> np.ndarray:
        """Expected emitted tokens of a step [N, K, A], of labelled rows."""
        return self.column("mean").reshape(len(self), len(self.manifest.rules), len(self.actions))

    def continuation(self, row: int) -> list[int]:
        """Return the tokens after the prompt at a root, up to its newest one."""
        tokens: list[int] = self.column("continuation")[row].tolist()
        return [token for token in tokens if token >= 0]

    @cached_property
    def nodes_NA(self) -> np.ndarray:
        """Distinct nodes [N, A] of each action's trees, mean over the root's draws."""
        return self.column("nodes").astype(np.float64)

    @cached_property
    def fed_NA(self) -> np.ndarray:
        """Distinct nodes [N, A] on branch levels that a further level hangs under."""
        return self.column("fed").astype(np.float64)

    def traffic(self) -> tuple[Traffic, ...]:
        """Average every action's nodes over the roots."""
        nodes_A, fed_A = self.nodes_NA.mean(axis=0), self.fed_NA.mean(axis=0)
        return tuple(Traffic(float(nodes), float(fed)) for nodes, fed in zip(nodes_A, fed_A, strict=True))
