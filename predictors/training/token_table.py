"""Token traces in memory (columns: `predictors.schema`), by token and by round.

Shape suffixes: N tokens, R rounds, G places in a round (γ_max).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from predictors.contract import CaptureContract
from predictors.schema import TOKEN_COLUMNS, TOKEN_TRACES_VERSION
from predictors.stopping.features import LAW, StopSpec
from predictors.training.placed import PlacedTable
from predictors.training.trace_table import Manifest, ShardedTable, list_column


@dataclass(frozen=True)
class TokenManifest(Manifest):
    """Of token traces: what the features are."""

    stop_spec: StopSpec
    gamma_max: int
    parameters: dict[str, Any]

    def sizes(self) -> dict[str, int]:
        return {"before": self.stop_spec.state_size, "behind": self.stop_spec.state_size, "top": self.stop_spec.top}

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)


class TokenTraces(ShardedTable[TokenManifest]):
    """Token traces: shards with the columns of `TOKEN_COLUMNS`."""

    columns = TOKEN_COLUMNS
    version = TOKEN_TRACES_VERSION
    kind = TokenManifest


class TokenTable(PlacedTable[TokenManifest]):
    """Drafted tokens of some splits, those of a round one after the other."""

    hint = "Lower traces.tokens.every."

    @staticmethod
    def read(folder: str | Path) -> "TokenTable":
        """All tokens of a finished collection; errors as `ShardedTable`'s."""
        traces = TokenTraces(folder)
        return TokenTable(traces.manifest, pa.concat_tables(list(traces.shards())))

    def features(self, inputs: str) -> Tensor:
        """Raw features [N, F] of `predictors.stopping.features` in float32."""
        if inputs == LAW:
            top_NT, entropy_N = list_column(self.table, "top"), self.column("entropy")
            return torch.from_numpy(np.concatenate([top_NT, entropy_N[:, None]], axis=1))
        return torch.from_numpy(list_column(self.table, inputs).astype(np.float32))

    @cached_property
    def rounds(self) -> "Rounds":
        """The table's rounds."""
        starts_N = self.column("place") == 0
        round_N = np.cumsum(starts_N) - 1
        rows_RG = np.full((int(starts_N.sum()), self.manifest.gamma_max), -1)
        rows_RG[round_N, self.column("place")] = np.arange(len(self))
        first = np.flatnonzero(starts_N)
        return Rounds(
            rows_RG=rows_RG,
            accepted_R=np.bincount(round_N, self.column("accepted").astype(float)).astype(int),
            document_R=self.column("document")[first],
            setting_R=self.setting_N[first],
            position_R=self.column("position")[first],
        )


@dataclass(frozen=True)
class Rounds:
    """Rounds of a table: the ``rows_RG`` of their tokens (-1 behind the last), how many were accepted, and where they lie."""

    rows_RG: np.ndarray
    accepted_R: np.ndarray
    document_R: np.ndarray
    setting_R: np.ndarray
    position_R: np.ndarray

    @property
    def drafted_R(self) -> np.ndarray:
        return np.asarray((self.rows_RG >= 0).sum(axis=1))

    def take(self, mask_R: np.ndarray) -> "Rounds":
        """Some of the rounds."""
        return Rounds(*(getattr(self, name)[mask_R] for name in self.__dataclass_fields__))

    def spread(self, values_N: np.ndarray, fill: float) -> np.ndarray:
        """A value of every token by round and place [R, G]; ``fill`` where nothing was drafted."""
        return np.where(self.rows_RG >= 0, values_N[self.rows_RG], fill)
