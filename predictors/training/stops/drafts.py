"""Drafts of some tokens from every position of texts, by how many of them are accepted: what thresholds on products decide about.

    P(N = n | text) = Π_{j<n} min(1, a_j) · (1 - min(1, a_n)), n < depth          the rest: all are accepted

A draft of which n are accepted holds the text's tokens, then the one beside it and a rollout, as `predictors.replay.text` says.
Shape suffixes: N rows, S positions, D drafts, G tokens of a draft.
"""

from dataclasses import dataclass

import numpy as np

from predictors.training.labelling.tokens import accepted
from predictors.training.stops.rows import SlotFeatures


@dataclass(frozen=True)
class Drafts:
    """Drafts from row ``start_D`` of which ``accepted_D`` tokens are accepted, with probability ``weight_D``: where a model reads
    what it says of each token, and whether text and budget hold so many (``whole_DG``) and all of it was recorded
    (``known_DG``)."""

    start_D: np.ndarray
    accepted_D: np.ndarray
    weight_D: np.ndarray
    row_DG: np.ndarray
    slot_DG: np.ndarray
    whole_DG: np.ndarray
    known_DG: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, depth: int) -> "Drafts":
        """Of ``depth`` tokens, or as many as were recorded, as a model of these inputs is asked about them."""
        table, last = features.table, len(features.table) - 1
        position_G = np.arange(min(depth, table.manifest.gamma_max - features.sees))
        start_S, left_S = np.arange(len(table)), table.manifest.max_new_tokens - 1 - table.column("place")
        row_SG = start_S[:, None] + position_G
        whole_SG = (row_SG <= features.end_N[:, None]) & (position_G < left_S[:, None])
        row_SG = np.minimum(row_SG, last)
        kept_SG = accepted(table)[row_SG]
        reached_SL = np.cumprod(np.insert(kept_SG, 0, 1.0, axis=1), axis=1)
        weight_SL = reached_SL * np.append(1 - kept_SG, np.ones((len(table), 1)), axis=1)
        start_D, accepted_D = np.nonzero(weight_SL > 0)
        on_path_DG = position_G < accepted_D[:, None]
        fork_D = np.minimum(start_D + accepted_D, last)
        row_DG = np.where(on_path_DG, row_SG[start_D] + features.sees, fork_D[:, None])
        slot_DG = np.where(on_path_DG, 0, position_G - accepted_D[:, None] + features.sees)
        known_DG = row_DG <= features.end_N[start_D][:, None]
        row_DG = np.minimum(row_DG, last)
        known_DG &= features.known_NG[row_DG, slot_DG] & whole_SG[start_D]
        known_DG = np.logical_and.accumulate(known_DG, axis=1)
        return Drafts(start_D, accepted_D, weight_SL[start_D, accepted_D], row_DG, slot_DG, whole_SG[start_D], known_DG)

    def take(self, mask_D: np.ndarray) -> "Drafts":
        """Some of the drafts."""
        return Drafts(*(getattr(self, name)[mask_D] for name in self.__dataclass_fields__))

    def said(self, values_NG: np.ndarray, unknown: float) -> np.ndarray:
        """What a model says of the tokens [D, G]; ``unknown`` where nothing was drafted."""
        return np.where(self.known_DG, values_NG[self.row_DG, self.slot_DG], unknown)

    @property
    def survives_DG(self) -> np.ndarray:
        """Whether a token is accepted, with all before it."""
        return np.arange(self.row_DG.shape[1]) < self.accepted_D[:, None]
