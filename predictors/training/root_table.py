"""Root traces in memory (columns: `predictors.schema`), and their labels of kind ``trees``: expected tokens of a step of every
action under every rule, over the trees sampled at a root.

    mean_ka   = (1/D) Σ_d E_dka                            E: expected emitted tokens, exact given the tree; d: the root's draws
    spread_ka = √( Σ_d (E_dka - mean_ka)² / (D - 1) )      what the sampling of trees adds; nan with one draw

No machine is in them: seconds come from the latency profile when a selector is fitted. Shape suffixes: N roots, D draws, K rules,
A actions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from predictors.actions import Action
from predictors.latency.actions import Traffic
from predictors.schema import ROOT_COLUMNS, ROOT_TRACES_VERSION, SPLITS
from predictors.selection.features import SCALARS, SelectionSpec
from predictors.training.labelling.table import Labels
from predictors.training.trace_table import Manifest, TraceTable

KIND = "trees"


@dataclass(frozen=True)
class RootManifest(Manifest):
    """Of root traces: what the features are, and what the labels are of."""

    selection_spec: SelectionSpec
    rules: tuple[str, ...]
    draws: int

    def sizes(self) -> dict[str, int]:
        spec = self.selection_spec
        labels = self.draws * len(self.rules) * len(spec.actions)
        return {"state": spec.state_size, "scalars": len(SCALARS), "nodes": len(spec.actions), "efficiency": labels}


class RootTable(TraceTable[RootManifest]):
    """Roots of some splits. Arrays are in the order of the rows; ``actions`` are the columns' A."""

    columns = ROOT_COLUMNS
    version = ROOT_TRACES_VERSION
    hint = "Raise traces.trees.prompts."
    kind = RootManifest

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.manifest.selection_spec.actions

    @cached_property
    def efficiency_NDKA(self) -> np.ndarray:
        """Expected emitted tokens of a step, by draw: as many draws as all these roots have."""
        shape = (len(self), self.manifest.draws, len(self.manifest.rules), len(self.actions))
        whole_NDKA = self.column("efficiency").reshape(shape).astype(np.float64)
        drawn_D = np.isfinite(whole_NDKA).any(axis=(2, 3)).all(axis=0)
        return whole_NDKA[:, drawn_D]

    def labelled(self, labels: Labels) -> "RootTable":
        """The labelled rows, with their labels; these are of the same traces."""
        rows = labels.table.column("row")
        joined = self.table.take(rows).append_column("mean", labels.table.column("mean"))
        return RootTable(self.manifest, joined, self._whole, self.index[rows.to_numpy()])

    @property
    def mean_NKA(self) -> np.ndarray:
        """Of labelled rows, expected emitted tokens of a step."""
        return self.column("mean").reshape(len(self), len(self.manifest.rules), len(self.actions))

    def continuation(self, row: int) -> list[int]:
        """What follows the prompt at a root, up to its newest token."""
        tokens: list[int] = self.column("continuation")[row].tolist()
        return [token for token in tokens if token >= 0]

    @cached_property
    def nodes_NA(self) -> np.ndarray:
        """Distinct nodes of each action's trees, mean over the root's draws."""
        return self.column("nodes").astype(np.float64)

    @cached_property
    def fed_NA(self) -> np.ndarray:
        """Of them those on branch levels that a further level hangs under."""
        return self.column("fed").astype(np.float64)

    def traffic(self) -> tuple[Traffic, ...]:
        """Every action's mean nodes."""
        nodes_A, fed_A = self.nodes_NA.mean(axis=0), self.fed_NA.mean(axis=0)
        return tuple(Traffic(float(nodes), float(fed)) for nodes, fed in zip(nodes_A, fed_A, strict=True))


@dataclass(frozen=True)
class TreeLabelConfig:
    """Section ``labels.trees``: nothing to choose; actions, rules and draws are those of the traces."""


def label(table: RootTable, config: TreeLabelConfig) -> Labels:
    """A row of means and spreads [K * A] for every root."""
    mean_NKA = np.full((len(table), len(table.manifest.rules), len(table.actions)), np.nan)
    spread_NKA = mean_NKA.copy()
    report = {}
    for split in SPLITS:
        mask_N = table.column("split") == split
        if not mask_N.any():
            continue
        efficiency_NDKA = table.rows(split).efficiency_NDKA
        mean_NKA[mask_N] = efficiency_NDKA.mean(axis=1)
        if efficiency_NDKA.shape[1] > 1:
            spread_NKA[mask_N] = efficiency_NDKA.std(axis=1, ddof=1)
        report[split] = _counts(table.rows(split), mean_NKA[mask_N], spread_NKA[mask_N])
    columns = {"row": table.index, "mean": _lists(mean_NKA), "spread": _lists(spread_NKA)}
    facts = {"rules": list(table.manifest.rules), "actions": [action.name for action in table.actions]}
    return Labels(KIND, pa.table(columns), table.manifest.content_hash, facts, report)


def _counts(table: RootTable, mean_NKA: np.ndarray, spread_NKA: np.ndarray) -> dict[str, Any]:
    """Roots, documents and draws; by rule the mean over roots and actions, and how far draws and roots are apart there."""
    draws = table.efficiency_NDKA.shape[1]
    rules = {}
    for place, rule in enumerate(table.manifest.rules):
        takes_A = np.isfinite(mean_NKA[:, place]).all(axis=0)
        mean_NA, spread_NA = mean_NKA[:, place][:, takes_A], spread_NKA[:, place][:, takes_A]
        rules[rule] = {
            "actions": int(takes_A.sum()),
            "tokens": float(mean_NA.mean()),
            "spread_of_draws": float(spread_NA.mean()) if draws > 1 else None,
            "spread_of_roots": float(mean_NA.std(axis=0).mean()),
        }
    documents = len(set(table.column("document").tolist()))
    return {"roots": len(table), "documents": documents, "draws": draws, "rules": rules}


def _lists(values_NKA: np.ndarray) -> pa.Array:
    size = values_NKA.shape[1] * values_NKA.shape[2]
    return pa.FixedSizeListArray.from_arrays(pa.array(values_NKA.reshape(-1), pa.float64()), size)
