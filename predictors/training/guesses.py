"""Family ``guess``: how the target drafts for itself by one method. Recorded ways are priced by a latency profile, and the
fastest is chosen: settings alone, on a card.

    seconds of a pass  = target(1 + drafted + guessed, l) + verdict(drafted) + guessing(guessed)
    tokens per second  = Σ committed / Σ seconds,  beside plain decoding: 1 / (target(1, l) + chain_verification(0))

all from the profile's fast quartiles; a verdict is that of tables chain_verification (no candidates), tree_verification
(temperature 0) or verification_nss (rule ``match`` is ``nss``). Of every method the way of most tokens per second over all
sampling settings is chosen. Metrics: DE, HR and AL of `predictors.rounds`, mean guessed (Dft) and candidate tokens (Ver) of a
pass. Intervals by bootstrap over documents. Source: paper on progressive tree drafting, sections 4.1 and 4.2.

Shape suffixes: P passes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from predictors.config import Checked, Count
from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.schema import GUESS_COLUMNS, GUESS_TRACES_VERSION
from predictors.training.intervals import DocumentBootstrap, percentiles
from predictors.training.predictor import Fitted, Materials
from predictors.training.trace_table import Manifest, TraceTable

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


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


@dataclass(frozen=True)
class GuessPredictor(Checked):
    """Family ``guess``: the fastest recorded way of ``method`` over all sampling settings; ``bootstrap_replicates`` for the
    recorded intervals."""

    method: str
    bootstrap_replicates: Count = 2000
    seed: int = 0

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        """Price all ways of the method, and choose."""
        table = GuessTable.read(materials.guesses)
        way, rows = choose(table, self.method, materials.profile, self.bootstrap_replicates, self.seed)
        worth = {row["setting"]: row["speedup"] for row in rows if row["way"] == way}
        card = {
            "kind": "fixed",
            "contract": table.manifest.contract,
            "decoder": way,
            "measured_quality": {"split": "validation", "priced_speedup": worth},
            "lineage": {"traces_sha256": table.manifest.content_hash, "profile_hash": materials.profile.profile_hash},
        }
        quality = {"method": self.method, "chosen": way, "rows": rows}
        metrics = {f"priced_speedup_{setting}".replace("=", ""): made["value"] for setting, made in worth.items()}
        return Fitted(card, {}, quality, metrics, sentence(way, worth))


def sentence(way: dict[str, Any], worth: dict[str, dict[str, float]]) -> str:
    """What was chosen and what it is worth."""
    options = ", ".join(f"{name} {value}" for name, value in way.items() if name != "method")
    speeds = ", ".join(f"{setting} {value['value']:.2f}x" for setting, value in worth.items())
    return f"{way['method']} ({options}): {speeds} plain decoding by the latency profile, validation prompts"


class GuessPrices:
    """Seconds of passes on the profile's machine, without what its neighbours added."""

    def __init__(self, profile: LatencyProfile) -> None:
        self._profile = undisturbed(profile)

    def passes(self, guessed_P: np.ndarray, drafted_P: np.ndarray, context_P: np.ndarray, sampled: bool) -> np.ndarray:
        """Seconds of passes [P] behind ``context_P`` tokens."""
        places = np.stack([guessed_P, drafted_P, context_P], axis=1)
        unique, inverse = np.unique(places, axis=0, return_inverse=True)
        seconds = [self._one(guessed, drafted, context, sampled) for guessed, drafted, context in unique.tolist()]
        return np.asarray(seconds)[inverse.reshape(-1)]

    def plain(self, context_P: np.ndarray, sampled: bool) -> np.ndarray:
        """Seconds of plain decoding's rounds [P]."""
        none_P = np.zeros_like(context_P)
        return self.passes(none_P, none_P, context_P, sampled)

    def _one(self, guessed: int, drafted: int, context: int, sampled: bool) -> float:
        read = self._profile.latency
        total = read("target", tokens=1 + drafted + guessed, context=context).seconds
        total += read("guessing", guessed=guessed).seconds if guessed else 0.0
        if drafted and sampled:
            return total + read("verification_nss", drafted=drafted).seconds
        kind = "tree_verification" if drafted else "chain_verification"
        return total + read(kind, drafted=drafted, sampled=int(sampled)).seconds


def choose(
    table: GuessTable, method: str, profile: LatencyProfile, replicates: int, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The way of ``method`` that emits most tokens per second over all passes, and what is said of all its ways, a row per way
    and sampling setting. `ValueError` if the traces hold no way of ``method``, or the profile lacks a table."""
    ways = table.manifest.ways
    places = [place for place, way in enumerate(ways) if way["method"] == method]
    if not places:
        known = ", ".join(sorted({way["method"] for way in ways}))
        raise ValueError(
            f"the traces hold no configuration of method {method!r}, only of {known}. Name one in traces.guesses.ways."
        )
    prices, seconds_P = GuessPrices(profile), np.empty(len(table))
    guessed_P, drafted_P, position_P = (table.column(name) for name in ("guessed", "drafted", "position"))
    for number, made in enumerate(table.settings):
        mask_P = table.setting_N == number
        some = guessed_P[mask_P], drafted_P[mask_P], position_P[mask_P]
        seconds_P[mask_P] = prices.passes(*some, sampled=not made.greedy)
    committed_P, way_P = table.column("committed"), table.column("way")
    speeds = {place: committed_P[way_P == place].sum() / seconds_P[way_P == place].sum() for place in places}
    rows = [
        {"way": ways[place], **_row(table, place, number, seconds_P, prices, replicates, seed)}
        for place in places
        for number in range(len(table.settings))
    ]
    return dict(ways[max(speeds, key=speeds.__getitem__)]), rows


def _row(
    table: GuessTable, place: int, number: int, seconds_P: np.ndarray, prices: GuessPrices, replicates: int, seed: int
) -> dict[str, Any]:
    """One way under one sampling setting."""
    mask_P, made = (table.column("way") == place) & (table.setting_N == number), table.settings[number]
    names = ("committed", "drafted", "guessed", "position", "document")
    committed_P, drafted_P, guessed_P, position_P, document_P = (table.column(name)[mask_P] for name in names)
    plain_P, hits_P = committed_P * prices.plain(position_P, sampled=not made.greedy), drafted_P > 0
    seconds_P = seconds_P[mask_P]
    bootstrap = DocumentBootstrap(document_P, replicates, seed)
    return {
        "setting": made.name,
        "speedup": percentiles(float(plain_P.sum() / seconds_P.sum()), bootstrap.ratio(plain_P, seconds_P)),
        "tokens_per_second": float(committed_P.sum() / seconds_P.sum()),
        "decoding_efficiency": float(committed_P.mean()),
        "hit_rate": float(hits_P.mean()),
        "accept_length": float(committed_P[hits_P].mean()) if hits_P.any() else None,
        "guessed": float(guessed_P.mean()),
        "candidates": float(drafted_P.mean()),
    }
