"""Traces in memory (columns: `predictors.schema`): texts, text by text, and roots of trees, joined with their labels.

Shape suffixes: N rows, G slots; of roots D draws, K rules, A actions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from predictors.actions import Action, Traffic
from predictors.latency.prices import RoundPrices
from predictors.replay.grid import Starts
from predictors.replay.text import LazyRows, RecordedText, RootStates
from predictors.sampling import SamplingSettings
from predictors.schema import PLACE_COLUMNS, ROOT_COLUMNS, ROOT_TRACES_VERSION, TEXT_COLUMNS, TEXT_TRACES_VERSION
from predictors.stopping import StopSpec
from predictors.training.trace_table import Manifest, TraceTable
from predictors.tree_choice import SCALARS, SelectionSpec

if TYPE_CHECKING:
    from predictors.training.labelling import Labels


ROOT, TOPS, STATES, HITS = "root", "tops", "states", "hits"


@dataclass(frozen=True)
class TextManifest(Manifest):
    """Manifest of text traces: how far they reach, by which verifier, and which states they hold."""

    gamma_max: int
    verifier: str
    candidates: int
    max_new_tokens: int
    eos_tokens: tuple[int, ...]
    feature_layers: tuple[int, ...]
    hidden_size: int
    embedding_size: int
    stop_spec: StopSpec
    reads_states: bool

    def sizes(self) -> dict[str, int]:
        return {
            ROOT: len(self.feature_layers) * self.hidden_size + self.embedding_size,
            "tokens": self.gamma_max,
            "lookup": self.gamma_max,
            TOPS: self.gamma_max * self.stop_spec.top,
            HITS: self.gamma_max * self.candidates,
        }


class TextTable(TraceTable[TextManifest]):
    """Table of positions of texts of some splits, those of a text one after the other."""

    columns = TEXT_COLUMNS
    wide = (ROOT, STATES)
    version = TEXT_TRACES_VERSION
    of = "texts"
    kind = TextManifest

    @property
    def median_context(self) -> float:
        """Median number of tokens in front of a position."""
        return float(np.median(self.column("position")))

    @cached_property
    def text_slices(self) -> list[slice]:
        """Rows of every text."""
        starts = np.append(np.flatnonzero(self.column("place") == 1), len(self))
        return [slice(*ends) for ends in pairwise(starts.tolist())]

    @cached_property
    def end_N(self) -> np.ndarray:
        """Index [N] of the row with which each row's text ends."""
        return np.concatenate([np.full(text.stop - text.start, text.stop - 1) for text in self.text_slices])

    def slots(self, name: str) -> np.ndarray:
        """View ``tops``, ``hits`` or ``states`` by slot [N, G, ...]. Of states there may be fewer slots than of all else."""
        spec = self.manifest.stop_spec
        flat_NF, size = self.column(name), {TOPS: spec.top, HITS: self.manifest.candidates}.get(name, spec.state_size)
        return flat_NF.reshape(len(self), flat_NF.shape[1] // max(1, size), size)

    def texts(self) -> Iterator[RecordedText]:
        """Yield the recorded texts, in the order of `text_slices`."""
        manifest = self.manifest
        kept = [name for name in TEXT_COLUMNS if name not in (*PLACE_COLUMNS, *self.wide)]
        columns = {name: self.slots(name) if name in (TOPS, HITS) else self.column(name) for name in kept}
        names = {name: self.column(name) for name in ("prompt_id", "document", "slice")}
        for rows in self.text_slices:
            first, root_NS = rows.start, LazyRows(partial(self.column, ROOT), rows)
            states_NGS = LazyRows(partial(self.slots, STATES), rows)
            yield RecordedText(
                **{name: str(values[first]) for name, values in names.items()},
                settings=self.settings[self.setting_N[first]],
                prompt_tokens=int(columns["position"][first]) - 1,
                budget=manifest.max_new_tokens,
                verifier=manifest.verifier,
                columns={name: values[rows] for name, values in columns.items()} | {STATES: states_NGS},
                eos_tokens=frozenset(manifest.eos_tokens),
                roots=RootStates(root_NS, tuple(manifest.feature_layers), manifest.hidden_size),
                draft_layers=manifest.stop_spec.draft_layers,
                reads_states=manifest.reads_states,
            )

    def starts(
        self, settings: SamplingSettings, depth: int, verifier: str, prices: RoundPrices
    ) -> tuple[Starts, list[slice]]:
        """Collect every start of a round in the texts at one sampling setting, and the rows that each text stands in."""
        known = zip(self.texts(), self.text_slices, strict=True)
        texts, rows = zip(*((text, some) for text, some in known if text.settings == settings), strict=True)
        return Starts.of(texts, depth, verifier, prices), list(rows)


@dataclass(frozen=True)
class RootManifest(Manifest):
    """Manifest of root traces: the definitions of features and labels."""

    selection_spec: SelectionSpec
    rules: tuple[str, ...]
    draws: int

    def sizes(self) -> dict[str, int]:
        spec = self.selection_spec
        labels = self.draws * len(self.rules) * len(spec.actions)
        return {"state": spec.state_size, "scalars": len(SCALARS), "nodes": len(spec.actions), "efficiency": labels}


class RootTable(TraceTable[RootManifest]):
    """Table of the roots of some splits. Arrays are in the order of the rows; ``actions`` are the columns' A."""

    columns = ROOT_COLUMNS
    version = ROOT_TRACES_VERSION
    of = "trees"
    kind = RootManifest

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.manifest.selection_spec.actions

    @cached_property
    def efficiency_NDKA(self) -> np.ndarray:
        """Expected emitted tokens of a step [N, D, K, A], by draw: as many draws as all these roots have."""
        shape = (len(self), self.manifest.draws, len(self.manifest.rules), len(self.actions))
        whole_NDKA = self.column("efficiency").reshape(shape).astype(np.float64)
        drawn_D = np.isfinite(whole_NDKA).any(axis=(2, 3)).all(axis=0)
        return whole_NDKA[:, drawn_D]

    def labelled(self, labels: "Labels") -> "RootTable":
        """Take the labelled rows, with their labels; these are of the same traces."""
        rows = labels.table.column("row")
        joined = self.table.take(rows).append_column("mean", labels.table.column("mean"))
        return RootTable(self.manifest, joined, self._whole, self.index[rows.to_numpy()])

    @property
    def mean_NKA(self) -> np.ndarray:
        """Expected emitted tokens of a step [N, K, A], of labelled rows."""
        return self.column("mean").reshape(len(self), len(self.manifest.rules), len(self.actions))

    def continuation(self, row: int) -> list[int]:
        """Return the tokens after the prompt at a root, up to its newest one."""
        tokens: list[int] = self.column("continuation")[row].tolist()
        return [token for token in tokens if token >= 0]

    @cached_property
    def nodes_NA(self) -> np.ndarray:
        """Distinct nodes [N, A] of each action's trees, mean over the root's draws."""
        return self.column("nodes").astype(np.float64)

    @cached_property
    def fed_NA(self) -> np.ndarray:
        """Distinct nodes [N, A] on branch levels that a further level hangs under."""
        return self.column("fed").astype(np.float64)

    def traffic(self) -> tuple[Traffic, ...]:
        """Average every action's nodes over the roots."""
        nodes_A, fed_A = self.nodes_NA.mean(axis=0), self.fed_NA.mean(axis=0)
        return tuple(Traffic(float(nodes), float(fed)) for nodes, fed in zip(nodes_A, fed_A, strict=True))
