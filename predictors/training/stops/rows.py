"""Inputs of a stop model from recorded texts: features of every slot, the drafted tokens that it learns from, and whole drafts.

    law, before   read at the token's own pass: at its slot
    behind        after the token: at the next slot
    hard label    whether the token was accepted
    soft label    Σ min(p, q) for a model that does not see the token, min(1, p/q) for one that does

Shape suffixes: N rows of the table or labelled tokens, G slots or tokens of a draft, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from predictors.stopping import BEHIND, LAW
from predictors.training.labelling import Labels
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
        """True if a model of these inputs sees the token that it judges."""
        return self.inputs == BEHIND

    def at(self, row_N: np.ndarray, slot_N: np.ndarray) -> Tensor:
        """Read features [N, F] in float32 of the pass at each row and slot."""
        read_NF = self._stored_NGF[row_N, slot_N].astype(np.float32)
        if self.inputs == LAW:
            read_NF = np.append(read_NF, self.table.column("entropy")[row_N, slot_N][:, None], axis=1)
        return torch.from_numpy(read_NF)

    def everywhere(self, said: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[np.ndarray, ...]:
        """Compute numbers by ``said`` from features [N, F] at all slots, each [N, G]; NaN where nothing was recorded."""
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
        """Slots [N, G] at which something was recorded."""
        return ~np.isnan(self.table.column("entropy"))

    @cached_property
    def _stored_NGF(self) -> np.ndarray:
        stored_NGF = self.table.slots(TOPS if self.inputs == LAW else STATES)
        if stored_NGF.shape[1] < self.table.manifest.gamma_max:
            raise ValueError(
                f"a model of {self.inputs} reads states of whole drafts, and none were recorded. Set traces.texts.rollout_states."
            )
        return stored_NGF


@dataclass(frozen=True)
class TokenRows:
    """Drafted tokens: the row and slot where a model reads what judges them, whether each was accepted, and its target."""

    row_N: np.ndarray
    slot_N: np.ndarray
    accepted_N: np.ndarray
    target_N: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, labels: Labels, kind: str) -> "TokenRows":
        """Collect the tokens of ``labels`` (`predictors.training.labelling.tokens`) of the features' texts that a model of these
        inputs judges."""
        index_N = features.table.index
        table = labels.table.filter(np.isin(labels.table.column("row"), index_N))
        row_N, slot_N, accepted_N, acceptance_N, overlap_N = (
            np.asarray(table.column(name)) for name in ("row", "slot", "accepted", "acceptance", "overlap")
        )
        row_N, read_N = np.searchsorted(index_N, row_N), slot_N.astype(int) + features.sees
        known_N = read_N < features.known_NG.shape[1]
        known_N[known_N] = features.known_NG[row_N[known_N], read_N[known_N]]
        target_N = accepted_N if kind == HARD else acceptance_N if features.sees else overlap_N
        columns = (row_N, read_N, accepted_N, target_N.astype(np.float32))
        return TokenRows(*(column[known_N] for column in columns))


@dataclass(frozen=True)
class WholeDrafts:
    """Chains from every row [N], of which ``accepted_N`` tokens are accepted: the slots ``slot_G`` where a model reads what
    judges each token; whether text and budget hold so many (``whole_NG``) and all of it was recorded (``known_NG``)."""

    accepted_N: np.ndarray
    slot_G: np.ndarray
    whole_NG: np.ndarray
    known_NG: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, depth: int) -> "WholeDrafts":
        """Collect drafts of ``depth`` tokens, or as many as were recorded, at slots where a model of these inputs is run."""
        table = features.table
        position_G = np.arange(min(depth, table.manifest.gamma_max - features.sees))
        left_N = np.minimum(
            table.end_N - np.arange(len(table)) + 1, table.manifest.max_new_tokens - 1 - table.column("place")
        )
        whole_NG, slot_G = position_G < left_N[:, None], position_G + features.sees
        known_NG = np.logical_and.accumulate(features.known_NG[:, slot_G] & whole_NG, axis=1)
        return WholeDrafts(table.column("accepted"), slot_G, whole_NG, known_NG)

    def take(self, mask_N: np.ndarray) -> "WholeDrafts":
        return WholeDrafts(self.accepted_N[mask_N], self.slot_G, self.whole_NG[mask_N], self.known_NG[mask_N])

    @property
    def survives_NG(self) -> np.ndarray:
        """True [N, G] where a token is accepted, with all before it."""
        return np.arange(len(self.slot_G)) < self.accepted_N[:, None]
