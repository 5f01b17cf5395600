"""What a stop model reads of recorded texts: features of every slot, and the drafted tokens that it learns from.

    law, before   read at the token's own pass: slot 0 of its row, for the text's token and the one beside it
    behind        after the text's token: slot 0 of the next row; after the one beside it: slot 1 of its own
    hard label    whether the token was accepted
    soft label    Σ min(p, q) for a model that does not see the token, min(1, p/q) for one that does

Shape suffixes: N rows of the trace or labelled tokens, G slots, F features.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from predictors.stopping.features import BEHIND, LAW
from predictors.training.labelling.table import Labels
from predictors.training.text_table import TextTable
from predictors.training.trace_table import list_column

SOFT, HARD = LABELS = ("soft", "hard")


@dataclass(frozen=True)
class SlotFeatures:
    """Raw features of ``inputs`` (`predictors.stopping.features`) at the slots of ``table``."""

    table: TextTable
    inputs: str

    def at(self, row_N: np.ndarray, slot_N: np.ndarray) -> Tensor:
        """Features [N, F] in float32 of the pass at each row and slot."""
        read_NF = self._stored_NGF[row_N, slot_N].astype(np.float32)
        if self.inputs == LAW:
            read_NF = np.concatenate([read_NF, self._entropy_NG[row_N, slot_N][:, None]], axis=1)
        return torch.from_numpy(read_NF)

    @cached_property
    def known_NG(self) -> np.ndarray:
        """Slots at which something was recorded."""
        return ~np.isnan(self._entropy_NG)

    @cached_property
    def last_N(self) -> np.ndarray:
        """Rows with which a text ends."""
        return np.append(self.table.column("place")[1:] == 1, True)

    @cached_property
    def _stored_NGF(self) -> np.ndarray:
        flat_NF = list_column(self.table.table, "tops" if self.inputs == LAW else "states")
        return flat_NF.reshape(len(flat_NF), self.table.manifest.gamma_max, -1)

    @cached_property
    def _entropy_NG(self) -> np.ndarray:
        return list_column(self.table.table, "entropy")


@dataclass(frozen=True)
class TokenRows:
    """Drafted tokens: their position ``row_N``, the ``read_N`` row and ``slot_N`` where a model reads what it says of them,
    whether each was ``accepted_N``, its ``target_N``, and how much it counts (``weight_N``)."""

    row_N: np.ndarray
    read_N: np.ndarray
    slot_N: np.ndarray
    accepted_N: np.ndarray
    target_N: np.ndarray
    weight_N: np.ndarray

    @staticmethod
    def of(features: SlotFeatures, labels: Labels, kind: str) -> "TokenRows":
        """Those of ``labels`` (`predictors.training.labelling.tokens`) about which a model of these inputs is asked."""
        row_N, on_path_N, weight_N, acceptance_N, overlap_N = (
            np.asarray(labels.table.column(name)) for name in ("row", "on_path", "weight", "acceptance", "overlap")
        )
        sees = features.inputs == BEHIND
        known_N = ~(features.last_N[row_N] & on_path_N & sees)
        read_N = np.where(known_N, row_N + (on_path_N & sees), row_N)
        slot_N = np.where(sees & ~on_path_N, 1, 0)
        known_N &= features.known_NG[read_N, slot_N]
        target_N = on_path_N if kind == HARD else acceptance_N if sees else overlap_N
        columns = (row_N, read_N, slot_N, on_path_N, target_N.astype(np.float32), weight_N)
        return TokenRows(*(column[known_N] for column in columns))

    def of_split(self, features: SlotFeatures, split: str) -> "TokenRows":
        """Those of a split's texts."""
        mask_N = (features.table.column("split") == split)[self.row_N]
        return TokenRows(*(getattr(self, name)[mask_N] for name in self.__dataclass_fields__))

    def features(self, features: SlotFeatures) -> Tensor:
        """What a model reads of them [N, F]."""
        return features.at(self.read_N, self.slot_N)
