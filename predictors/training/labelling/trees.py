"""Labels of kind ``trees``: expected tokens of a step of every action under every rule, over the trees sampled at a root.

    mean_ka   = (1/D) Σ_d E_dka                            E: expected emitted tokens, exact given the tree; d: the root's draws
    spread_ka = √( Σ_d (E_dka - mean_ka)² / (D - 1) )      what the sampling of trees adds; nan with one draw

No machine is in them: seconds come from the latency profile when a selector is fitted. Shape suffixes: N roots, D draws, K rules,
A actions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from predictors.schema import SPLITS
from predictors.training.labelling import Labels
from predictors.training.root_table import RootTable

KIND = "trees"


@dataclass(frozen=True)
class TreeLabelConfig:
    """Configuration ``labels.trees``: nothing to choose; actions, rules and draws are those of the traces."""


def label(table: RootTable, config: TreeLabelConfig) -> Labels:
    """Label every root by a row of means and spreads [K * A]."""
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
    """Count roots, documents and draws; by rule, average over roots and actions, and how far draws and roots are apart there."""
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
