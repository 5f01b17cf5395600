"""What a stop model reads of recorded texts: features of every slot, and the drafted tokens that it learns from.

    law, before   read at the token's own pass: slot 0 of its row, for the text's token and the one beside it
    behind        after the text's token: slot 0 of the next row; after the one beside it: slot 1 of its own
    hard label    whether the token was accepted
    soft label    Σ min(p, q) for a model that does not see the token, min(1, p/q) for one that does

Shape suffixes: N rows of the table or labelled tokens, G slots, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from predictors.stopping.features import BEHIND, LAW
from predictors.training.labelling.table import Labels
from predictors.training.text_table import STATES, TOPS, TextTable

SOFT, HARD = LABELS = ("soft", "hard")
ROWS_AT_ONCE = 2000


@dataclass(frozen=True)
class SlotFeatures:
    """Raw features of ``inputs`` (`predictors.stopping.features`) at the slots of ``table``."""

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
    def end_N(self) -> np.ndarray:
        """The row with which each row's text ends."""
        return self.table.starts_T[self.table.text_N + 1] - 1

    @cached_property
    def _stored_NGF(self) -> np.ndarray:
        stored_NGF = self.table.slots(TOPS if self.inputs == LAW else STATES)
        if stored_NGF.shape[1] < self.table.manifest.gamma_max:
            raise ValueError(
                f"a model of {self.inputs} reads the draft's states of the texts' alternatives, and none were recorded. Set "
                "traces.texts.beside_states and collect again."
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
        known_N = read_N <= features.end_N[row_N]
        known_N[known_N] = features.known_NG[read_N[known_N], slot_N[known_N]]
        target_N = on_path_N if kind == HARD else acceptance_N if features.sees else overlap_N
        columns = (read_N, slot_N, on_path_N, target_N.astype(np.float32), weight_N)
        return TokenRows(*(column[known_N] for column in columns))
