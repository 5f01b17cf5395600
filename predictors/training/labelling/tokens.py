"""Label the tokens that are tested of the chain from every root: accepted or rejected.

A row is a token: ``row`` of the root in the trace, ``slot`` in its chain, whether it was ``accepted``, how likely that is of
such a token (``acceptance``, min(1, p/q)) and of a token drawn there (``overlap``, Σ min(p, q)). The tokens of a chain are tested
up to the first rejected one. Under a tokenwise verifier, over texts y ~ p, they come from q and are accepted with min(1, p/q):

    p(y) min(1, q(y) / p(y)) = min(p, q)(y)        Σ_y p(y) (1 - min(1, a(y))) · [q - p]_+(x) / Σ [q - p]_+ = [q - p]_+(x)

Source: specification of drafting, section 5.5. Shape suffixes: N rows of the trace, T labelled tokens.
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
    """Configuration of token labels: nothing to choose, as all tested tokens are labelled."""


def label(table: TextTable, config: TokenLabelConfig) -> Labels:
    """Label every token of ``table`` that comes to a test."""
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
    return Labels(KIND, pa.table(columns), table.manifest.content_hash, facts={}, report=report)
