"""Guess traces in memory (columns: `predictors.schema`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from predictors.contract import CaptureContract
from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION
from predictors.training.placed import PlacedTable
from predictors.training.trace_table import Manifest, ShardedTable


@dataclass(frozen=True)
class GuessManifest(Manifest):
    """Of guess traces: the ``ways`` that prompts were decoded in, decoder configurations."""

    ways: tuple[dict, ...]
    parameters: dict[str, Any]

    def sizes(self) -> dict[str, int]:
        return {}

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)


class GuessTraces(ShardedTable[GuessManifest]):
    """Guess traces: shards with the columns of `GUESS_COLUMNS`."""

    columns = GUESS_COLUMNS
    version = GUESS_TRACES_VERSION
    kind = GuessManifest


class GuessTable(PlacedTable[GuessManifest]):
    """Passes, in the order of the shards."""

    hint = "Raise traces.guesses.prompts."

    @staticmethod
    def read(folder: str | Path) -> "GuessTable":
        """All passes of a finished collection; errors as `ShardedTable`'s."""
        traces = GuessTraces(folder)
        return GuessTable(traces.manifest, pa.concat_tables(list(traces.shards())))
