"""What a stop model reads of recorded texts: features of every slot, the drafted tokens that it learns from, and whole drafts.

    law, before   read at the token's own pass: slot 0 of its row, for the text's token and the one beside it
    behind        after the text's token: slot 0 of the next row; after the one beside it: slot 1 of its own
    hard label    whether the token was accepted
    soft label    Σ min(p, q) for a model that does not see the token, min(1, p/q) for one that does

Thresholds on products decide about drafts of some tokens from every position, by how many of them are accepted:

    P(N = n | text) = Π_{j<n} min(1, a_j) · (1 - min(1, a_n)), n < depth          the rest: all are accepted

A draft of which n are accepted holds the text's tokens, then the one beside it and a rollout, as `predictors.replay.text` says.
Shape suffixes: N rows of the table or labelled tokens, G slots or tokens of a draft, F features, S positions, D drafts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from predictors.stopping import BEHIND, LAW
from predictors.training.labelling import Labels
from predictors.training.labelling.tokens import accepted
from predictors.training.text_table import STATES, TOPS, TextTable

SOFT, HARD = LABELS = ("soft", "hard")
ROWS_AT_ONCE = 2000


@dataclass(frozen=True)
class SlotFeatures:
    """Raw features of ``inputs`` (`predictors.stopping`) at the slots of ``table``."""

    table: TextTable
    inputs: str

    @property
    def sees(self) -> bool:
        """Whether a model of these inputs sees the token that it speaks of."""
        return self.inputs == BEHIND

    def at(self, row_N: np.ndarray, slot_N: np.ndarray) -> Tensor:
        """Features [N, F] in float32 of the pass at each row and slot."""
        read_NF = self._stored_NGF[row_N, slot_N].astype(np.float32)
        if self.inputs == LAW:
            read_NF = np.append(read_NF, self.table.column("entropy")[row_N, slot_N][:, None], axis=1)
        return torch.from_numpy(read_NF)

    def everywhere(self, said: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[np.ndarray, ...]:
        """Numbers that ``said`` has for features [N, F], each [N, G]; NaN where nothing was recorded."""
        found: list[np.ndarray] = []
        for first in range(0, len(self.known_NG), ROWS_AT_ONCE):
            row_N, slot_N = np.nonzero(self.known_NG[first : first + ROWS_AT_ONCE])
            numbers = said(self.at(row_N + first, slot_N))
            found = found or [np.full(self.known_NG.shape, np.nan) for _ in numbers]
            for made_NG, number_N in zip(found, numbers, strict=True):
                made_NG[row_N + first, slot_N] = number_N.double().numpy()
        return tuple(found)

    @cached_property
    def known_NG(self) -> np.ndarray:
        """Slots at which something was recorded."""
        return ~np.isnan(self.table.column("entropy"))

    @cached_property
    def _stored_NGF(self) -> np.ndarray:
        stored_NGF = self.table.slots(TOPS if self.inputs == LAW else STATES)
        if stored_NGF.shape[1] < self.table.manifest.gamma_max:
            raise ValueError(
                f"a model of {self.inputs} reads states beside texts, and none were recorded. Set traces.texts.beside_states."
            )
        return stored_NGF


@dataclass(frozen=True)
class TokenRows:
    """Drafted tokens: the row and slot where a model reads what it says of them, whether each was accepted, its target, and how
    much it counts."""

    row_N: np.ndarray
    slot_N: np.ndarray
    accepted_N: np.ndarray
    target_N: np.ndarray
    weight_N: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, labels: Labels, kind: str) -> "TokenRows":
        """Those of ``labels`` (`predictors.training.labelling.tokens`) at positions of the features' texts, about which a model
        of these inputs is asked."""
        index_N = features.table.index
        table = labels.table.filter(np.isin(labels.table.column("row"), index_N))
        row_N, on_path_N, weight_N, acceptance_N, overlap_N = (
            np.asarray(table.column(name)) for name in ("row", "on_path", "weight", "acceptance", "overlap")
        )
        row_N = np.searchsorted(index_N, row_N)
        read_N = row_N + (on_path_N & features.sees)
        slot_N = (~on_path_N & features.sees).astype(int)
        known_N = read_N <= features.table.end_N[row_N]
        known_N[known_N] = features.known_NG[read_N[known_N], slot_N[known_N]]
        target_N = on_path_N if kind == HARD else acceptance_N if features.sees else overlap_N
        columns = (read_N, slot_N, on_path_N, target_N.astype(np.float32), weight_N)
        return TokenRows(*(column[known_N] for column in columns))


@dataclass(frozen=True)
class WholeDrafts:
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
    def of(features: SlotFeatures, depth: int) -> "WholeDrafts":
        """Of ``depth`` tokens, or as many as were recorded, as a model of these inputs is asked about them."""
        table, last = features.table, len(features.table) - 1
        position_G = np.arange(min(depth, table.manifest.gamma_max - features.sees))
        start_S, left_S = np.arange(len(table)), table.manifest.max_new_tokens - 1 - table.column("place")
        row_SG = start_S[:, None] + position_G
        whole_SG = (row_SG <= table.end_N[:, None]) & (position_G < left_S[:, None])
        row_SG = np.minimum(row_SG, last)
        kept_SG = accepted(table)[row_SG]
        reached_SL = np.cumprod(np.insert(kept_SG, 0, 1.0, axis=1), axis=1)
        weight_SL = reached_SL * np.append(1 - kept_SG, np.ones((len(table), 1)), axis=1)
        start_D, accepted_D = np.nonzero(weight_SL > 0)
        on_path_DG = position_G < accepted_D[:, None]
        fork_D = np.minimum(start_D + accepted_D, last)
        row_DG = np.where(on_path_DG, row_SG[start_D] + features.sees, fork_D[:, None])
        slot_DG = np.where(on_path_DG, 0, position_G - accepted_D[:, None] + features.sees)
        known_DG = row_DG <= table.end_N[start_D][:, None]
        row_DG = np.minimum(row_DG, last)
        known_DG &= features.known_NG[row_DG, slot_DG] & whole_SG[start_D]
        known_DG = np.logical_and.accumulate(known_DG, axis=1)
        return WholeDrafts(
            start_D, accepted_D, weight_SL[start_D, accepted_D], row_DG, slot_DG, whole_SG[start_D], known_DG
        )

    def take(self, mask_D: np.ndarray) -> "WholeDrafts":
        return WholeDrafts(*(values[mask_D] for values in vars(self).values()))

    def said(self, values_NG: np.ndarray, unknown: float) -> np.ndarray:
        """What a model says of the tokens [D, G]; ``unknown`` where nothing was drafted."""
        return np.where(self.known_DG, values_NG[self.row_DG, self.slot_DG], unknown)

    @property
    def survives_DG(self) -> np.ndarray:
        """Whether a token is accepted, with all before it."""
        return np.arange(self.row_DG.shape[1]) < self.accepted_D[:, None]
