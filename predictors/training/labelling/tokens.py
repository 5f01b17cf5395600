"""Label the tokens that a draft may hold at every position of a text: accepted or rejected, each with its probability.

Let y be the text's token at a position, q and p the draft's and the target's probabilities there, a = q(y) / p(y). Given the
text, a drafted token that is tested there with min(1, p/q) is

    y, accepted                  with probability min(1, a)
    x ~ [q - p]_+, rejected      else: the token recorded beside the text

Over texts y ~ p, so drafted tokens come from q, and a token x is accepted with probability min(1, p(x) / q(x)):

    p(x) min(1, q(x) / p(x)) = min(p, q)(x)        Σ_y p(y) (1 - min(1, a(y))) · [q - p]_+(x) / Σ [q - p]_+ = [q - p]_+(x)

A row is one of the two tokens: ``row`` of the position in the trace, ``on_path`` (the text's own token, so it was accepted), its
``weight`` given the text, its ``acceptance`` min(1, p/q), and the position's ``overlap`` Σ min(p, q). Tokens after a rejected one
come to no test and are no rows. Source: specification of drafting, section 5.5. Shape suffix: N rows of the trace.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from predictors.config import Checked
from predictors.training.labelling import Labels
from predictors.training.text_table import TextTable

KIND = "tokens"


@dataclass(frozen=True)
class TokenLabelConfig(Checked):
    """``drawn``: one token of every position, drawn by its weight with ``seed``, as a decoder would have met it; else both."""

    drawn: bool = False
    seed: int = 0


def label(table: TextTable, config: TokenLabelConfig) -> Labels:
    """The labels of every position of ``table``; a token of weight 0 is left out."""
    ratio_N, beside_N = table.column("ratio"), table.column("beside_ratio")
    kept_N = accepted(table)
    if config.drawn:
        kept_N = (np.random.default_rng(config.seed).random(len(kept_N)) < kept_N).astype(np.float64)
    parts = [_rows(table, kept_N, ratio_N, on_path=True), _rows(table, 1 - kept_N, beside_N, on_path=False)]
    labels = pa.concat_tables(parts).sort_by([("row", "ascending"), ("on_path", "descending")])
    report = {"positions": len(table), "tokens": labels.num_rows, "accepted": float(kept_N.mean())}
    return Labels(KIND, labels, table.manifest.content_hash, facts={}, report=report)


def accepted(table: TextTable) -> np.ndarray:
    """The probability [N], given the text, that a token drafted at a position and tested with min(1, p/q) is accepted."""
    rejects_N = ~np.isnan(table.column("beside_ratio"))
    return np.where(rejects_N, np.minimum(table.column("ratio"), 1.0), 1.0)


def _rows(table: TextTable, weight_N: np.ndarray, ratio_N: np.ndarray, on_path: bool) -> pa.Table:
    """Of every position the text's token or the one beside it, by its draft over target probability."""
    rows = np.flatnonzero(weight_N > 0)
    return pa.table(
        {
            "row": rows,
            "on_path": np.full(len(rows), on_path),
            "weight": weight_N[rows].astype(np.float32),
            "acceptance": (1 / np.maximum(ratio_N[rows], 1.0)).astype(np.float32),
            "overlap": table.column("overlap")[rows].astype(np.float32),
        }
    )
