"""Interface of predictors, as stage ``fit`` sees them: from traces, labels and prices to a bundle and its quality; and the choice
of the rule served.

A predictor has rows, a network and loss, candidate rules and a card. It is trained on training documents, calibrated
and given rules on validation documents by replayed tokens per second, for the verifier, settings and prices that it will serve,
and scored once on test documents. Whether a rule pays is judged on documents it was not chosen on:

    served      pick(all documents), for a table of rules argmax_r T_r / C_r; T tokens, C seconds
    gain        ln (Σ_k T_{r(-k)} / Σ_k C_{r(-k)}) - ln (T_static / C_static)       r(-k): picked outside fold k of documents
    pays        the gain's lower bound is above 0

The interval is the jackknife's over documents (`predictors.training.intervals`), of out-of-fold sums. It takes the folds' choices
as given: of 50 worthless rules on 30 documents the best pays in 2 % of simulated cases, in 8 % where rules share no decision.
Shape suffixes: R rules, X texts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from predictors.config import Checked, Positive, Probability
from predictors.training.labelling import Labels, read_labels
from predictors.training.tables import TextTable
from predictors.training.trace_table import Manifest

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger
    from torch import Tensor

    from predictors.latency.profile import LatencyProfile
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from predictors.replay.decode import Clock
from predictors.replay.grid import Starts, Totals, decoded
from predictors.replay.policies import static
from predictors.training.intervals import log_gain

Rule = TypeVar("Rule")
# from a mask [X] of texts: what was chosen on them, with its tokens and seconds [2, X] on all
Pick = Callable[[np.ndarray], tuple[Any, np.ndarray]]


@dataclass(frozen=True)
class Materials:
    """Sources that predictors are fitted from: folders of ``texts``, ``trees`` and ``guesses`` traces, the folder of ``labels``
    (``<kind>.parquet``), and this device's latency ``profile``."""

    texts: Path
    trees: Path
    guesses: Path
    labels: Path
    profile: "LatencyProfile"

    @cached_property
    def text_table(self) -> TextTable:
        """Table of all texts, read once for the fit and for what its card records of them."""
        return TextTable.read(self.texts)

    def labels_of(self, kind: str, traces: Manifest) -> Labels:
        """Read the labels of ``kind`` of these ``traces``; `ValueError` as of `read_labels`."""
        return read_labels(self.labels / f"{kind}.parquet", kind, traces.content_hash)

    @staticmethod
    def of(traces: Path, labels: Path, profile: "LatencyProfile") -> "Materials":
        """Find the materials in the folder that holds all ``traces``."""
        return Materials(traces / "texts", traces / "trees", traces / "guesses", labels, profile)


@dataclass(frozen=True)
class Trust(Checked):
    """Limit on how far features may lie from the training rows: the ``distance_quantile`` of squared distances on validation
    documents, times ``distance_margin``."""

    distance_quantile: Probability = 0.999
    distance_margin: Positive = 2.0

    def largest(self, distances: np.ndarray) -> float:
        """Set the limit by the ``distances`` on validation documents; of none, by 1, the mean on training rows."""
        return self.distance_margin * (float(np.quantile(distances, self.distance_quantile)) if len(distances) else 1.0)


def tracked_name(setting: str) -> str:
    """Write a sampling setting's name as trackers allow it in a metric's.

    Examples
    --------
    >>> tracked_name("T=1, top-p 0.9")
    'T_1_top_p_0.9'
    """
    return re.sub("[^A-Za-z0-9.]+", "_", setting)


def told(gain: Mapping[str, float | None]) -> str:
    """Put a gain and its interval in words."""
    value, low, high = ("unknown" if gain[name] is None else f"{gain[name]:+.1%}" for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Fitted:
    """Result of a fit: the bundle's ``card`` (a function of file contents only) and ``tensors``, its ``quality`` on test
    documents (JSON), flat ``metrics`` for tracking, and its result in one ``sentence``."""

    card: dict[str, Any]
    tensors: "dict[str, Tensor]"
    quality: dict[str, Any]
    metrics: dict[str, float | None]
    sentence: str


def card_of(kind: str, manifest: Manifest, decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Begin the card of a controller that learns from traces: all but what was chosen and measured."""
    lineage = {"traces_sha256": manifest.content_hash}
    return {"kind": kind, "contract": manifest.contract, "decoder": decoder, "lineage": lineage}


class Predictor(Protocol):
    """Configuration of a predictor, under ``fit`` in params.yaml, by its ``family``."""

    def fit(self, name: str, materials: Materials, logger: "Logger | None" = None) -> Fitted:
        """Fit the predictor called ``name``; curves go to ``logger``. `ValueError` if a trace, a label table or a price that it
        needs is missing."""
        ...


@dataclass(frozen=True)
class RuleChoice:
    """Choice of a rule: the best ``rule`` (as it was picked; of a table its number), the ``gain`` of choosing it over the best
    static length (``value``, ``low``, ``high``), and whether it ``pays``."""

    rule: Any
    gain: dict[str, float | None]
    pays: bool


def table_of(totals: Iterable[Totals]) -> np.ndarray:
    """Stack tokens and seconds [2, R, X] of rules on the same texts."""
    return np.stack([one.sums_2X for one in totals], axis=1)


def choose(table_2RX: np.ndarray, static_2X: np.ndarray, document_X: np.ndarray, folds: int, seed: int) -> RuleChoice:
    """Choose from a table of rules by the ratio of sums, as `choose_by`."""

    def pick(mask_X: np.ndarray) -> tuple[int, np.ndarray]:
        best = fastest(table_2RX, mask_X)
        return best, table_2RX[:, best]

    return choose_by(pick, static_2X, document_X, folds, seed)


def best_of(
    rules: Sequence[Rule], play: Callable[[Rule], Totals], static: Totals, document_X: np.ndarray, folds: int, seed: int
) -> RuleChoice:
    """Choose among ``rules`` that ``play`` on the same texts by tokens per second, judged over ``static``."""
    choice = choose(table_of(map(play, rules)), static.sums_2X, document_X, folds, seed)
    return replace(choice, rule=rules[choice.rule])


def choose_by(pick: Pick, static_2X: np.ndarray, document_X: np.ndarray, folds: int, seed: int) -> RuleChoice:
    """Choose the rule that is served, and judge out of fold what choosing it gains. All that is chosen, ``pick`` chooses on the
    texts that its mask allows. `ValueError` if there are fewer documents than ``folds``, or fewer than two of either."""
    fold_X = fold_of(document_X, folds, seed)
    ours_2X = np.zeros((2, len(fold_X)))
    for fold in range(folds):
        _, made_2X = pick(fold_X != fold)
        ours_2X[:, fold_X == fold] = made_2X[:, fold_X == fold]
    gain = log_gain(ours_2X, static_2X, document_X)
    pays = gain["low"] is not None and gain["low"] > 0
    return RuleChoice(pick(np.ones(len(fold_X), dtype=bool))[0], gain, pays)


def fold_of(document_X: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Assign each text a fold; all texts of a document share one."""
    names, document_X = np.unique(document_X, return_inverse=True)
    if not 2 <= folds <= len(names):
        raise ValueError(
            f"{len(names)} documents cannot be split into {folds} folds of at least one. Collect more prompts."
        )
    return np.random.default_rng(seed).permutation(len(names))[document_X] % folds


def static_totals(starts: Starts, length: int) -> Totals:
    """Decode by chains of always ``length`` tokens."""
    return decoded(starts, static(starts, length))


def static_length(several: Sequence[Starts]) -> int:
    """Find the static length of most tokens per second over all starts of all tables given; of equals the shortest."""
    depth = min(one.depth for one in several)
    return max(range(depth + 1), key=lambda length: rate_of(static_totals(one, length) for one in several))


def rate_of(several: Iterable[Totals]) -> float:
    """Compute tokens per second over the texts of all totals."""
    tokens, seconds = zip(*((one.tokens_X.sum(), one.seconds_X.sum()) for one in several), strict=True)
    return float(sum(tokens) / sum(seconds))


def fastest(table_2RX: np.ndarray, mask_X: np.ndarray) -> int:
    """Find the rule of most tokens per second over the texts in the mask; of equals the first."""
    tokens_R, seconds_R = (sums_RX[:, mask_X].sum(axis=1) for sums_RX in table_2RX)
    return int((tokens_R / seconds_R).argmax())


def worth(made: Totals, static: Totals, document_X: np.ndarray) -> dict[str, Any]:
    """Measure a policy's speed on texts, its tokens a pass and submitted a round, and its gain over the ``static`` one."""
    return {
        "tokens_per_second": made.rate,
        "block_efficiency": float((made.tokens_X - 1).sum() / made.rounds_X.sum()),
        "submitted": float(made.submitted_X.sum() / made.rounds_X.sum()),
        "gain": log_gain(made.sums_2X, static.sums_2X, document_X),
    }


def oracle(starts: Starts) -> Totals:
    """Decode by the oracle: the fastest chains of all, by what will be accepted."""
    clock = Clock(starts.prices.profile)
    decodes = [clock.oracle(text, starts.depth) for text in starts.texts]
    names = ("tokens", "seconds", "rounds", "submitted", "passes", "accepted", "asked")
    sums: dict[str, Any] = {f"{name}_X": np.array([getattr(one, name) for one in decodes]) for name in names}
    return Totals(**sums)


def scored(policies: Mapping[str, Totals], starts: Starts) -> dict[str, Any]:
    """Measure every policy's `worth` on some texts, and the oracle's (``perfect``), over the one called static."""
    totals = {**policies, "perfect": oracle(starts)}
    return {name: worth(one, policies["static"], starts.document_X) for name, one in totals.items()}
