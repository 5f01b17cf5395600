"""Roots that a policy's decodes meet, each with the round before it, as features know it.

A round from every position s gives the position after it its past:  e = s + min(N(s), submitted) + 1. So a text is learned from
wherever some round of the policy ends, once with every past that occurs. A policy that reads its own past needs one at s, too:
that of the latest round which ends there. Shape suffixes: X readings, S starts, M states of memory, P roots with a past.
"""

import numpy as np

from predictors.replay.grid import Drafts, Starts
from predictors.replay.policies import previous_round


def met(
    starts: Starts, row_XS: np.ndarray, drafts: Drafts, past_XS: np.ndarray, gamma: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of a policy with ``past_XS``: rows and pasts [2, P] of the roots that follow, the texts' first ones among them, and the
    pasts [X, S] that they give to every start."""
    memory = np.minimum(past_XS, drafts.submitted_XSM.shape[2] - 1)[..., None]
    submitted_XS = np.take_along_axis(drafts.submitted_XSM, memory, axis=2)[..., 0]
    accepted_XS = np.minimum(starts.would_XS, submitted_XS)
    reading_P, start_P = np.nonzero(starts.left_XS > accepted_XS + 1)
    end_P = start_P + accepted_XS[reading_P, start_P] + 1
    state_P = previous_round(gamma).after(accepted_XS, submitted_XS)[reading_P, start_P]
    given_XS = np.zeros_like(past_XS)
    given_XS[reading_P, end_P] = state_P
    row_P = np.concatenate([row_XS[:, 0], row_XS[reading_P, end_P]])
    past_P = np.concatenate([np.zeros(len(past_XS), dtype=int), state_P])
    return np.unique(np.stack([row_P, past_P]), axis=1), given_XS
