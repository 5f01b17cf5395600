"""What a stop model knows of texts that it never saw: of every drafted token, and of drafts as they grow.

    tokens         AUROC, Brier score and calibration error of tested tokens, each once (as the first of a draft), and by position
    product_bias   mean Π P̂ along whole drafts (predicted) beside P(N >= n) (observed), which thresholds consume; empty for none

Tokens count by their probability given the text. Shape suffixes: N tokens, D drafts, G tokens of a draft.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from predictors.training.metrics import auc
from predictors.training.stops.drafts import Drafts
from predictors.training.stops.rows import TokenRows

BINS = 15
# of rows and slots, each behind so many tokens
Chances = Callable[[np.ndarray, np.ndarray, np.ndarray | int], np.ndarray]


def quality(tokens: TokenRows, drafts: Drafts, chances: Chances) -> dict[str, Any]:
    """Quality of ``chances`` on ``tokens`` and ``drafts``."""
    whole = drafts.take(np.asarray(drafts.whole_DG.all(axis=1)))
    survives_DG, drafted_G = whole.survives_DG, np.arange(whole.row_DG.shape[1])
    chances_DG = np.where(whole.known_DG, chances(whole.row_DG, whole.slot_DG, drafted_G), 0.0)
    total = whole.weight_D.sum()
    means = (np.cumprod(chances_DG, axis=1), survives_DG)
    predicted, observed = ((whole.weight_D @ values_DG / total).tolist() if total else [] for values_DG in means)
    return {
        "tokens": {
            "all": binary(chances(tokens.row_N, tokens.slot_N, 0), tokens.accepted_N, tokens.weight_N),
            **_by_position(whole, chances_DG),
        },
        "product_bias": {"predicted": predicted, "observed": observed},
        "rounds": len(np.unique(whole.start_D)),
    }


def _by_position(drafts: Drafts, chances_DG: np.ndarray) -> dict[str, Any]:
    made = {}
    for position in range(chances_DG.shape[1]):
        tested_D = (drafts.accepted_D >= position) & drafts.known_DG[:, position]
        if tested_D.any():
            columns = (chances_DG[:, position], drafts.accepted_D > position, drafts.weight_D)
            made[str(position)] = binary(*(column[tested_D] for column in columns))
    return made


def binary(chances_N: np.ndarray, accepted_N: np.ndarray, weight_N: np.ndarray) -> dict[str, Any]:
    """Quality of chances of one event: ECE over equal bins of the chance."""
    bin_N = np.minimum((chances_N * BINS).astype(int), BINS - 1)
    total = float(weight_N.sum())
    gaps = np.abs(np.bincount(bin_N, weight_N * (accepted_N - chances_N), minlength=BINS))
    return {
        "tokens": round(total),
        "accepted": float(weight_N @ accepted_N / total),
        "auroc": auc(chances_N, accepted_N, weight_N),
        "brier": float(weight_N @ (chances_N - accepted_N) ** 2 / total),
        "ece": float(gaps.sum() / total),
    }
