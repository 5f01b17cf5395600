"""Labels of heads that predict how much of a chain will be accepted: every position of a text is a root.

    reached_n = P(N >= n | text),  n = 1..γ        `predictors.replay.acceptance`, by the verifier that serves
    accepted  = as the chain was drawn that was recorded there

At temperature 0 every probability is 0 or 1. A root with fewer than γ tokens of text before it is dropped whole, whatever was
rejected there: which roots stay depends on the text alone, so no class is favoured.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from predictors.config import Checked, at_least
from predictors.head import CLASSES
from predictors.replay.acceptance import reached
from predictors.schema import SPLITS, TRAIN
from predictors.training.labelling import Labels
from predictors.training.text_table import TextTable

KIND = "chains"
TOO_LATE = "fewer than gamma tokens of text left"


@dataclass(frozen=True)
class ChainLabelConfig(Checked):
    """Configuration of chain labels; ``gamma``: the number of tokens that they are about."""

    gamma: Annotated[int, at_least(2)]  # a draft of one token is never accepted in part


def class_of(accepted_N: np.ndarray, gamma: int) -> np.ndarray:
    """Turn accepted counts into H-RAD's classes [N]: none, some or all."""
    return np.where(accepted_N <= 0, 0, np.where(accepted_N >= gamma, 2, 1))


def label(table: TextTable, config: ChainLabelConfig) -> Labels:
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
    return Labels(KIND, pa.table(columns), manifest.content_hash, facts, report)


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
