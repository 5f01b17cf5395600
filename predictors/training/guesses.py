"""Family ``guess``: settings by which the target drafts for itself. Recorded configurations of one method are priced by a
latency profile, and the fastest is chosen: settings alone, on a card.

    tokens per second  = Σ committed / Σ seconds,  alongside plain decoding: 1 / (target(1, l) + chain_verification(0))

by `RoundPrices.guessing_pass`. Of every method the way of most tokens per second over all sampling settings is chosen. Metrics:
DE, HR and AL of `predictors.rounds`, mean guessed (Dft) and candidate tokens (Ver) of a pass. Intervals by bootstrap over
documents. Source: paper on progressive tree drafting, sections 4.1 and 4.2.

Shape suffixes: P passes.
"""

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from predictors.config import Checked, Count
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION
from predictors.training.intervals import DocumentBootstrap, percentiles
from predictors.training.predictor import Fitted, Materials, card_of
from predictors.training.trace_table import Manifest, TraceTable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


@dataclass(frozen=True)
class GuessManifest(Manifest):
    """Manifest of guess traces: the ``ways`` that prompts were decoded in, decoder configurations."""

    ways: tuple[dict, ...]


class GuessTable(TraceTable[GuessManifest]):
    """Table of passes, in the order of the shards."""

    columns = GUESS_COLUMNS
    version = GUESS_TRACES_VERSION
    of = "guesses"
    kind = GuessManifest


@dataclass(frozen=True)
class GuessPredictor(Checked):
    """Predictor of family ``guess``: the fastest recorded way of ``method`` over all sampling settings;
    ``bootstrap_replicates`` for the recorded intervals."""

    method: str
    bootstrap_replicates: Count = 2000
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        table = GuessTable.read(materials.guesses)
        way, rows = choose(table, self.method, materials.profile, self.bootstrap_replicates, self.seed)
        worth = {row["setting"]: row["speedup"] for row in rows if row["way"] == way}
        card = card_of("fixed", table.manifest, way) | {
            "measured_quality": {"split": "validation", "priced_speedup": worth}
        }
        card["lineage"]["profile_hash"] = materials.profile.profile_hash
        quality = {"method": self.method, "chosen": way, "rows": rows}
        metrics = {f"priced_speedup_{setting}".replace("=", ""): made["value"] for setting, made in worth.items()}
        options = ", ".join(f"{name} {value}" for name, value in way.items() if name != "method")
        speeds = ", ".join(f"{setting} {value['value']:.2f}x" for setting, value in worth.items())
        sentence = f"{self.method} ({options}): {speeds} plain decoding by the latency profile, validation prompts"
        return Fitted(card, {}, quality, metrics, sentence)


def pass_seconds(
    profile: LatencyProfile, guessed_P: np.ndarray, drafted_P: np.ndarray, context_P: np.ndarray, sampled: bool
) -> np.ndarray:
    """Price passes [P] after ``context_P`` tokens, in seconds on the profile's machine, without what its neighbours added."""
    prices = RoundPrices(profile, sampled)
    passes = np.stack([guessed_P, drafted_P, context_P], axis=1)
    unique, which_P = np.unique(passes, axis=0, return_inverse=True)
    return np.array([prices.guessing_pass(*values) for values in unique.tolist()])[which_P.reshape(-1)]


def choose(
    table: GuessTable, method: str, profile: LatencyProfile, replicates: int, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Choose the way of ``method`` that emits most tokens per second over all passes; also return figures of all its ways, a row
    per way and sampling setting. `ValueError` if the traces hold no way of ``method``, or the profile lacks a table."""
    ways = table.manifest.ways
    places = [place for place, way in enumerate(ways) if way["method"] == method]
    if not places:
        known = ", ".join(sorted({way["method"] for way in ways}))
        raise ValueError(
            f"the traces hold no configuration of method {method!r}, only of {known}. Name one in traces.guesses.ways."
        )
    names = ("committed", "drafted", "guessed", "position", "document", "way")
    committed_P, drafted_P, guessed_P, position_P, document_P, way_P = map(table.column, names)
    seconds_P, plain_P = np.empty(len(table)), np.empty(len(table))
    for number, made in enumerate(table.settings):
        mask_P, sampled = table.setting_N == number, not made.read_off
        context_P, none_P = position_P[mask_P], np.zeros(mask_P.sum(), dtype=int)
        seconds_P[mask_P] = pass_seconds(profile, guessed_P[mask_P], drafted_P[mask_P], context_P, sampled=sampled)
        plain_P[mask_P] = committed_P[mask_P] * pass_seconds(profile, none_P, none_P, context_P, sampled=sampled)
    rows, passes = [], (committed_P, drafted_P, guessed_P, seconds_P, plain_P, document_P)
    for place, (number, made) in product(places, enumerate(table.settings)):
        mask_P = (way_P == place) & (table.setting_N == number)
        committed, drafted, guessed, seconds, plain, documents = (column_P[mask_P] for column_P in passes)
        hits, bootstrap = drafted > 0, DocumentBootstrap(documents, replicates, seed)
        rows.append(
            {
                "way": ways[place],
                "setting": made.name,
                "speedup": percentiles(float(plain.sum() / seconds.sum()), bootstrap.ratio(plain, seconds)),
                "tokens_per_second": float(committed.sum() / seconds.sum()),
                "decoding_efficiency": float(committed.mean()),
                "hit_rate": float(hits.mean()),
                "accept_length": float(committed[hits].mean()) if hits.any() else None,
                "guessed": float(guessed.mean()),
                "candidates": float(drafted.mean()),
            }
        )
    speeds = {place: committed_P[way_P == place].sum() / seconds_P[way_P == place].sum() for place in places}
    return dict(ways[max(speeds, key=speeds.__getitem__)]), rows
