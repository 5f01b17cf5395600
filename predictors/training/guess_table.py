"""Guess traces in memory (columns: `predictors.schema`)."""

from dataclasses import dataclass
from typing import Any

from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION
from predictors.training.trace_table import Manifest, TraceTable


@dataclass(frozen=True)
class GuessManifest(Manifest):
    """Of guess traces: the ``ways`` that prompts were decoded in, decoder configurations."""

    ways: tuple[dict, ...]
    parameters: dict[str, Any]


class GuessTable(TraceTable[GuessManifest]):
    """Passes, in the order of the shards."""

    columns = GUESS_COLUMNS
    version = GUESS_TRACES_VERSION
    hint = "Raise traces.guesses.prompts."
    kind = GuessManifest
