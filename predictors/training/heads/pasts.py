"""Roots that a policy's decodes meet, each with the round before it, as features know it.

A round from every position s gives the position after it its past:  e = s + min(N(s), submitted) + 1. So a text is learned from
wherever some round of the policy ends, once with every past that occurs. A policy that reads its own past needs one at s, too:
that of the latest round which ends there. Shape suffixes: X readings,
S starts, M states of memory, P roots with a past.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from predictors.replay.decode import Reading
from predictors.replay.grid import Drafts, Starts
from predictors.replay.policies import previous_round
from predictors.replay.prices import Prices
from predictors.training.text_table import TextTable

HELD_OUT = ("validation", "test")


@dataclass(frozen=True)
class Grid:
    """``starts`` of one split and sampling setting, and the table's ``row_XS`` of each (of none behind a text's end)."""

    starts: Starts
    row_XS: np.ndarray


def grids(
    table: TextTable, prices: Mapping[bool, Prices], depth: int, verifier: str, repeats: int, seed: int
) -> dict[tuple[str, int], Grid]:
    """By split and number of the setting; ``repeats`` of chance on held-out texts that are sampled, one on others."""
    found: dict[tuple[str, int], list[tuple[Reading, int]]] = {}
    row, split_R, setting_R = 0, table.column("split"), table.setting_N
    for text in table.texts(leave_out=("root", "tops", "states", "lookup", "hits", "mass")):
        several = 1 if text.settings.greedy or split_R[row] not in HELD_OUT else repeats
        key = str(split_R[row]), int(setting_R[row])
        found.setdefault(key, []).extend((Reading.of(text, seed + place), row) for place in range(several))
        row += text.length - 1
    return {
        key: _grid(entries, depth, verifier, prices[not table.settings[key[1]].greedy])
        for key, entries in found.items()
    }


def _grid(entries: Sequence[tuple[Reading, int]], depth: int, verifier: str, prices: Prices) -> Grid:
    starts = Starts.of([reading for reading, _ in entries], depth, verifier, prices)
    first_X, count_X = np.array([row for _, row in entries]), starts.valid_XS.sum(axis=1)
    return Grid(starts, first_X[:, None] + np.minimum(np.arange(starts.left_XS.shape[1]), count_X[:, None] - 1))


def met(grid: Grid, drafts: Drafts, past_XS: np.ndarray, gamma: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a policy with ``past_XS``: rows [P] and pasts [P] of the roots that follow, the texts' first ones among them, and the pasts
    [X, S] that they give to every start."""
    starts = grid.starts
    memory = np.minimum(past_XS, drafts.submitted_XSM.shape[2] - 1)[..., None]
    submitted_XS = np.take_along_axis(drafts.submitted_XSM, memory, axis=2)[..., 0]
    accepted_XS = np.minimum(starts.would_XS, submitted_XS)
    reading_P, start_P = np.nonzero(starts.left_XS > accepted_XS + 1)
    end_P = start_P + accepted_XS[reading_P, start_P] + 1
    state_P = previous_round(gamma).after(accepted_XS, submitted_XS)[reading_P, start_P]
    given_XS = np.zeros_like(past_XS)
    given_XS[reading_P, end_P] = state_P
    rows_P = np.concatenate([grid.row_XS[:, 0], grid.row_XS[reading_P, end_P]])
    pasts_P = np.concatenate([np.zeros(len(past_XS), dtype=int), state_P])
    rows_P, pasts_P = np.unique(np.stack([rows_P, pasts_P]), axis=1)
    return rows_P, pasts_P, given_XS
