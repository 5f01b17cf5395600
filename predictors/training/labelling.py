"""Labels: what a predictor is to predict at positions of a trace; on disk one Parquet file per kind. Rows hold no features.

Column ``row`` is the index of a label's features in the trace (rows are counted through its shards); the file's metadata
names that trace, so that labels are never joined to another one.

chains    every position of a text is a root of a chain; ``reached`` and ``accepted``, as the chain was drawn that was recorded

    reached_n = P(N >= n | text),  n = 1..γ        `predictors.replay.acceptance`, by the verifier that serves

At temperature 0 every probability is 0 or 1. A root with fewer than γ tokens of text before it is dropped whole, whatever was
rejected there: which roots stay depends on the text alone, so no class is favoured.

tokens    those of a chain that are tested, up to the first rejected one. Under a tokenwise verifier, over texts y ~ p, they come
          from q and are accepted with min(1, p/q) (specification of drafting, section 5.5):

    p(y) min(1, q(y) / p(y)) = min(p, q)(y)        Σ_y p(y) (1 - min(1, a(y))) · [q - p]_+(x) / Σ [q - p]_+ = [q - p]_+(x)

trees     expected tokens E of a step of every action under every rule, exact given the tree, over the D draws of a root's trees.
          No machine is in them: seconds come from the latency profile when a selector is fitted.

    mean_ka = (1/D) Σ_d E_dka        spread_ka = √( Σ_d (E_dka - mean_ka)² / (D - 1) ), nan with one draw

Shape suffixes: N rows of the trace or roots, T labelled tokens, D draws, K rules, A actions.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from predictors.config import Checked, at_least
from predictors.head import CLASSES
from predictors.replay.acceptance import reached
from predictors.schema import SPLITS, TRAIN
from predictors.training.tables import RootTable, TextTable

CHAINS, TOKENS, TREES = ("chains", "tokens", "trees")
LABELS_VERSION = 3
METADATA_KEY = b"draftwright"
REMEDY = "Run the labels stage again."
TOO_LATE = "fewer than gamma tokens of text left"


@dataclass(frozen=True)
class Labels:
    """Labels of one ``kind``: the ``table`` with column ``row``, the ``traces_sha256`` they belong to, ``facts`` that
    readers need, and a ``report`` of counts for people."""

    kind: str
    table: pa.Table
    traces_sha256: str
    facts: dict[str, Any]
    report: dict[str, Any]


@dataclass(frozen=True)
class LabelConfig(Checked):
    """Configuration of labels where nothing is to choose: all tested tokens, all trees of the traces are labelled."""


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


@dataclass(frozen=True)
class ChainLabelConfig(Checked):
    """Configuration of chain labels; ``gamma``: the number of tokens that they are about."""

    gamma: Annotated[int, at_least(2)]  # a draft of one token is never accepted in part


def class_of(accepted_N: np.ndarray, gamma: int) -> np.ndarray:
    """Turn accepted counts into H-RAD's classes [N]: none, some or all."""
    return np.where(accepted_N <= 0, 0, np.where(accepted_N >= gamma, 2, 1))


def label_chains(table: TextTable, config: ChainLabelConfig) -> Labels:
    """Label the roots of all texts. `ValueError` if ``gamma`` is more than was recorded, a document or prompt stands in two
    splits, or a class has no training row."""
    gamma, manifest = config.gamma, table.manifest
    if gamma > manifest.gamma_max:
        raise ValueError(
            f"labels.chains.gamma is {gamma}, and drafts of {manifest.gamma_max} tokens were recorded. Raise "
            "traces.texts.gamma_max and collect again."
        )
    rows_N = np.flatnonzero(table.end_N - np.arange(len(table)) + 1 >= gamma)
    ratio_NG, probability_NG = (table.column(name)[rows_N, :gamma] for name in ("ratio", "probability"))
    reached_NG = reached(ratio_NG, probability_NG, manifest.verifier)
    accepted_N = np.minimum(table.column("accepted")[rows_N], gamma)
    _require_disjoint(table, "document")
    _require_disjoint(table, "prompt_id")
    report = _report(table, rows_N, class_of(accepted_N, config.gamma))
    _require_classes(report, config.gamma)
    columns = {
        "row": pa.array(rows_N.astype(np.int32)),
        "reached": pa.FixedSizeListArray.from_arrays(pa.array(reached_NG.astype(np.float32).ravel()), config.gamma),
        "accepted": pa.array(accepted_N.astype(np.int8)),
    }
    facts = {"gamma": gamma, "verifier": manifest.verifier}
    return Labels(CHAINS, pa.table(columns), manifest.content_hash, facts, report)


def _report(table: TextTable, rows_N: np.ndarray, class_N: np.ndarray) -> dict[str, Any]:
    """Count labelled roots by split, slice, setting and drawn class, and those dropped."""
    split_N, slice_N, document_N = (table.column(name)[rows_N] for name in ("split", "slice", "document"))
    setting_N = np.array([made.name for made in table.settings], dtype=object)[table.setting_N[rows_N]]
    every_N = np.zeros(len(rows_N), dtype=int)

    def classes(group_N: np.ndarray, groups: Iterable[Any]) -> dict[Any, dict[str, dict[str, int]]]:
        """Count classes by group and split."""
        counts = Counter(zip(group_N.tolist(), split_N.tolist(), class_N.tolist(), strict=True))
        return {
            group: {split: {name: counts[group, split, c] for c, name in enumerate(CLASSES)} for split in SPLITS}
            for group in groups
        }

    return {
        "rows": {split: int((split_N == split).sum()) for split in SPLITS},
        "documents": {split: len(set(document_N[split_N == split])) for split in SPLITS},
        "classes": classes(every_N, [0])[0],
        "slices": classes(slice_N, sorted(set(slice_N))),
        "settings": classes(setting_N, sorted(set(setting_N))),
        "dropped": {TOO_LATE: len(table) - len(rows_N)},
    }


def _require_classes(report: dict[str, Any], gamma: int) -> None:
    for split, counts in report["classes"].items():
        empty = [name for name, count in counts.items() if not count]
        if empty and (split == TRAIN or len(empty) == len(CLASSES)):
            other = ", or lower labels.chains.gamma" if empty == ["all"] and gamma > 2 else ""
            raise ValueError(
                f"no row of class {', '.join(map(repr, empty))} in split {split!r} at gamma {gamma} (rows: {counts}). Raise "
                f"traces.texts.prompts{other}."
            )


def _require_disjoint(table: TextTable, name: str) -> None:
    """Raise `ValueError` for a document or prompt in two splits, which would leak into validation."""
    seen: dict[str, str] = {}
    pairs: Iterable[tuple[str, str]] = zip(table.column(name), table.column("split"), strict=True)
    for key, split in pairs:
        if seen.setdefault(key, split) != split:
            raise ValueError(
                f"{name} {key!r} stands in split {seen[key]!r} and in split {split!r}: validation would leak. Split prompts by "
                "document and collect the traces again."
            )


def label_tokens(table: TextTable, config: LabelConfig) -> Labels:
    """Label the tokens that are tested of the chain from every root: accepted or rejected.

    A row is a token: ``row`` of the root in the trace, ``slot`` in its chain, whether it was ``accepted``, how likely that is of
    such a token (``acceptance``, min(1, p/q)) and of a token drawn there (``overlap``, Σ min(p, q)).
    """
    slot_G, accepted_N = np.arange(table.manifest.gamma_max), table.column("accepted")
    left_N = table.end_N - np.arange(len(table)) + 1  # tokens of text
    row_T, slot_T = np.nonzero((slot_G <= accepted_N[:, None]) & (slot_G < left_N[:, None]))
    kept_T = slot_T < accepted_N[row_T]
    ratio_T = np.where(kept_T, table.column("ratio")[row_T, slot_T], table.column("rejected_ratio")[row_T])
    columns = {
        "row": row_T,
        "slot": slot_T.astype(np.int16),
        "accepted": kept_T,
        "acceptance": (1 / np.maximum(ratio_T, 1.0)).astype(np.float32),
        "overlap": table.column("overlap")[row_T, slot_T],
    }
    report = {"positions": len(table), "tokens": len(row_T), "accepted": float(kept_T.mean())}
    return Labels(TOKENS, pa.table(columns), table.manifest.content_hash, facts={}, report=report)


def label_trees(table: RootTable, config: LabelConfig) -> Labels:
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
    return Labels(TREES, pa.table(columns), table.manifest.content_hash, facts, report)


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
