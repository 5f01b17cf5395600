"""Text traces in memory (columns: `predictors.schema`), text by text. Shape suffixes: N rows."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from predictors.contract import CaptureContract
from predictors.replay.text import RecordedText, RootStates, by_slot
from predictors.schema import PLACE_COLUMNS, TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping.features import StopSpec
from predictors.training.placed import PlacedTable
from predictors.training.trace_table import Manifest, ShardedTable, list_column

ROOT = "root"


@dataclass(frozen=True)
class TextManifest(Manifest):
    """Of text traces: how far they reach and which states they hold."""

    gamma_max: int
    candidates: int
    max_new_tokens: int
    eos_tokens: tuple[int, ...]
    feature_layers: tuple[int, ...]
    hidden_size: int
    embedding_size: int
    stop_spec: StopSpec

    def sizes(self) -> dict[str, int]:
        return {
            ROOT: len(self.feature_layers) * self.hidden_size + self.embedding_size,
            "tokens": self.gamma_max,
            "lookup": self.gamma_max,
            "tops": self.gamma_max * self.stop_spec.top,
            "states": self.gamma_max * self.stop_spec.state_size,
            "hits": self.candidates,
        }

    def capture_contract(self, where: str) -> CaptureContract:
        return CaptureContract.from_json(self.contract, where)


class TextTraces(ShardedTable[TextManifest]):
    """Text traces: shards with the columns of `TEXT_COLUMNS`."""

    columns = TEXT_COLUMNS
    version = TEXT_TRACES_VERSION
    kind = TextManifest


class TextTable(PlacedTable[TextManifest]):
    """Places of texts of some splits, those of a text one after the other."""

    hint = "Raise traces.texts.prompts."

    @staticmethod
    def read(folder: str | Path) -> "TextTable":
        """All places of a finished collection; errors as `ShardedTable`'s."""
        traces = TextTraces(folder)
        return TextTable(traces.manifest, pa.concat_tables(list(traces.shards())))

    @property
    def median_context(self) -> float:
        """Tokens in front of the median place."""
        return float(np.median(self.column("position")))

    def texts(self, leave_out: Container[str] = ()) -> Iterator[RecordedText]:
        """The recorded texts, in the table's order, without the columns ``leave_out``."""
        manifest, text_N = self.manifest, np.cumsum(self.column("place") == 1)
        kept = [name for name in TEXT_COLUMNS if name not in PLACE_COLUMNS and name not in leave_out]
        columns = by_slot({name: self._values(name) for name in kept})
        states_NS = columns.pop(ROOT, None)
        names = {name: self.column(name) for name in ("prompt_id", "document", "slice")}
        for number in range(1, int(text_N[-1]) + 1):
            rows = slice(*np.searchsorted(text_N, (number, number + 1)))
            first = rows.start
            yield RecordedText(
                **{name: str(values[first]) for name, values in names.items()},
                settings=self.settings[self.setting_N[first]],
                prompt_tokens=int(columns["position"][first]) - 1,
                budget=manifest.max_new_tokens,
                columns={name: values[rows] for name, values in columns.items()},
                eos_tokens=frozenset(manifest.eos_tokens),
                draft_layers=manifest.stop_spec.draft_layers,
                roots=None
                if states_NS is None
                else RootStates(states_NS[rows], manifest.feature_layers, manifest.hidden_size),
            )

    def _values(self, name: str) -> np.ndarray:
        if "<" not in TEXT_COLUMNS[name]:
            return self.column(name)
        return np.array(list_column(self.table, name))  # tensors share it, and want it writable
