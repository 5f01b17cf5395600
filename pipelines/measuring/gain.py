"""The gain of one arm over another: tokens from replay, seconds from the clock, with its error by jackknife over documents.

    seconds per token at a setting = (Σ y / Σ x) (Σ X / Σ T)    where replay knows the arm
                                   = Σ y / Σ n                  where it does not, as of trees
    gain = mean over settings of the rival's seconds per token / the same of the arm - 1

``y`` and ``n`` are seconds and tokens of timed decodes in blocks that both arms share, ``x`` what the latency profile says of
their rounds; ``X`` is what it says of the arm's rounds along recorded texts of ``T`` tokens, the same for every arm. So Σ y / Σ x
is the arm's own factor on the profile's prices, and texts, which cost nothing, say how many rounds of which lengths there are.
Where an arm serves the very decoder that its rival is, its gain is 0. Of one slice the factor is that of all slices.

    variance of θ = (n - 1) / n Σ_d (θ_(d) - mean)²,    θ = ln(gain + 1),    θ_(d) without document d, of n
    bound         = exp(θ -+ t error) - 1,              t with one degree of freedom less than timed documents

Sources: ratio estimators (Cochran, Sampling Techniques, 1977, chapter 6); Shao and Tu, The Jackknife and Bootstrap, 1995,
section 6.2. Shape suffixes: A arms, N blocks or texts, D documents, S settings, F quantities,
of sums y, x, X and T; 2 sides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

from predictors.sampling import SamplingSettings

Row = Mapping[str, Any]
REPLAYED, CLOCK = "tokens from replay", "clock"  # what an estimate rests on
BASES = (REPLAYED, CLOCK)
SIDE, LEVEL = 0.025, 0.05  # one-sided levels of a 95 % interval, and of a 95 % bound


def setting_of(row: Row) -> str:
    """Name of the sampling setting of a row, or of a choice."""
    if row.get("setting"):
        return str(row["setting"])
    return SamplingSettings.of(row).name


class TooFewDocumentsError(ValueError):
    """Two arms were timed on fewer than two documents at a setting: nothing says how far their gain is off."""


@dataclass(frozen=True)
class Estimate:
    """A gain over a rival: logarithm of the ratio of speeds.

    Examples
    --------
    >>> round(Estimate(0.1, 0.0, 5.0, 6, 6).gain, 3)
    0.105
    """

    value: float  # log ratio of the speeds
    error: float  # its standard error
    freedom: float  # degrees of freedom of the error
    documents: int  # that both arms were timed on
    prompts: int  # that both arms were timed on
    basis: str = CLOCK  # or `REPLAYED`

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or not self.error >= 0 or not self.freedom > 0:
            raise ValueError(
                f"an estimate needs a finite value, an error >= 0 and freedom > 0, got {self.value}, {self.error} and "
                f"{self.freedom}. Time both arms on more documents."
            )
        if self.basis not in BASES:
            raise ValueError(f"basis must be one of {', '.join(BASES)}, got {self.basis!r}.")

    @property
    def gain(self) -> float:
        return math.expm1(self.value)

    def low(self, level: float = LEVEL) -> float:
        """The gain's lower bound at one-sided ``level``."""
        return math.expm1(self.value - self._quantiles(level) * self.error)

    def high(self, level: float = LEVEL) -> float:
        """The gain's upper bound at one-sided ``level``."""
        return math.expm1(self.value + self._quantiles(level) * self.error)

    def interval(self) -> dict[str, float | None]:
        """The gain with its 95 % interval."""
        return {"value": self.gain, "low": self.low(SIDE), "high": self.high(SIDE)}

    def detectable(self, level: float, margin: float, power: float) -> float:
        """The smallest true gain that passes at one-sided ``level`` above ``margin`` with probability ``power``."""
        return math.expm1(math.log1p(margin) + self._quantiles(level, 1 - power) * self.error)

    def documents_needed(self, level: float, margin: float, power: float) -> int | None:
        """Timed documents with which the estimated gain, were it true, would pass so often; ``None``: it is not above the margin,
        or by so little that no number of documents tells it from that."""
        above = self.value - math.log1p(margin)
        if above <= 0:
            return None
        wanted = self._quantiles(level, 1 - power) * self.error / above
        documents = self.documents * wanted * wanted
        return math.ceil(documents) if math.isfinite(documents) else None

    def _quantiles(self, *levels: float) -> float:
        return float(sum(student.ppf(1 - level, self.freedom) for level in levels))


@dataclass(frozen=True)
class Items:
    """Timed blocks, or recorded texts: where they are from, and quantities ``amounts_FAN`` of every arm, NaN where an arm has
    none."""

    names: tuple[str, ...]
    prompt_N: np.ndarray
    document_N: np.ndarray  # place among the documents
    slice_N: np.ndarray
    setting_N: np.ndarray
    amounts_FAN: np.ndarray

    @staticmethod
    def of(
        rows: Sequence[Row],
        key: Sequence[str],
        quantities: Sequence[str],
        arms: Mapping[str, int],
        documents: Mapping[str, int],
    ) -> "Items":
        """Join rows of the same ``key`` into items; ``quantities`` are columns of the rows."""
        first = {tuple(row[name] for name in key): row for row in reversed(rows)}
        names = sorted(first)
        place = {name: number for number, name in enumerate(names)}
        amounts_FAN = np.full((len(quantities), len(arms), len(names)), np.nan)
        for row in rows:
            at = arms[row["arm"]], place[tuple(row[name] for name in key)]
            amounts_FAN[:, *at] = [row[name] for name in quantities]
        where = [first[name] for name in names]
        columns = (np.array([str(row[name]) for row in where]) for name in ("prompt", "slice", "setting"))
        prompt_N, slice_N, setting_N = columns
        document_N = np.array([documents[str(row["document"])] for row in where], dtype=int)
        return Items(tuple(map(str, names)), prompt_N, document_N, slice_N, setting_N, amounts_FAN)

    def of_both(self, arms: Sequence[int], setting: str, only_slice: str | None) -> np.ndarray:
        """Mark the items that both ``arms`` have, at a setting and of a slice [N]."""
        kept_N = ~np.isnan(self.amounts_FAN[0, list(arms)]).any(axis=0) & (self.setting_N == setting)
        return kept_N if only_slice is None else kept_N & (self.slice_N == only_slice)

    def sums(self, arm: int, kept_N: np.ndarray, count: int) -> np.ndarray:
        """Sums [F, D] of an arm's quantities by document."""
        weights_FN = self.amounts_FAN[:, arm, kept_N]
        return np.array([np.bincount(self.document_N[kept_N], one, count) for one in weights_FN])


@dataclass(frozen=True)
class TimedDecodes:
    """All that gains are made of: timed ``blocks`` with seconds, what the profile says of them, and tokens, and recorded
    ``texts`` with the profile's seconds and tokens. ``same``: by setting, arms that are one decoder there, in twos."""

    arms: Mapping[str, int]
    documents: tuple[str, ...]
    blocks: Items
    texts: Items
    same: Mapping[str, frozenset[frozenset[str]]]

    @staticmethod
    def of(
        decodes: Iterable[Row], texts: Iterable[Row] = (), same: Mapping[str, frozenset[frozenset[str]]] | None = None
    ) -> "TimedDecodes":
        """Make it from rows of decodes: ``arm block prompt document slice temperature tokens seconds`` and, where it is known,
        ``profiled``: seconds that the latency profile gives the decode's own rounds. And of replayed texts: ``arm prompt document
        slice setting tokens seconds``, of which seconds are the profile's.

        `ValueError` without decodes, for an arm twice in a block, or without tokens or time."""
        timed = [{"slice": "", **row, "setting": setting_of(row)} for row in decodes]
        timed = [row | {"profiled": row.get("profiled") or math.nan} for row in timed]
        recorded = [{**row, "setting": setting_of(row)} for row in texts]
        if not timed:
            raise ValueError("there are no decodes to compare. Measure first.")
        seen: set[tuple[str, str]] = set()
        for row in timed:
            where = f"arm {row['arm']!r} in block {row['block']!r}"
            if not (row["tokens"] > 0 and row["seconds"] > 0):
                raise ValueError(f"{where} has {row['tokens']} tokens in {row['seconds']} s. Time it again.")
            if (row["arm"], row["block"]) in seen:
                raise ValueError(f"{where} was timed twice. Give repeats other blocks.")
            seen.add((row["arm"], row["block"]))
        arms = {name: place for place, name in enumerate(sorted({row["arm"] for row in timed}))}
        recorded = [row for row in recorded if row["arm"] in arms]
        documents = tuple(sorted({str(row["document"]) for row in (*timed, *recorded)}))
        index = {name: place for place, name in enumerate(documents)}
        blocks = Items.of(timed, ["block"], ["seconds", "profiled", "tokens"], arms, index)
        made = Items.of(recorded, ["prompt", "setting"], ["seconds", "tokens"], arms, index)
        return TimedDecodes(arms, documents, blocks, made, same or {})

    @property
    def settings(self) -> list[str]:
        """Names of the sampling settings."""
        return sorted(set(self.blocks.setting_N.tolist()))

    @property
    def slices(self) -> list[str]:
        """Names of the timed prompts' slices."""
        return sorted(set(self.blocks.slice_N.tolist()))

    def shared(self, arm: str, rival: str) -> tuple[list[str], list[str]]:
        """Names of settings and documents at which both were timed in one block; `ValueError` for an unknown arm."""
        for name in (arm, rival):
            if name not in self.arms:
                raise ValueError(f"arm {name!r} was not timed. Timed: {', '.join(self.arms)}.")
        both_N = ~np.isnan(self.blocks.amounts_FAN[0, [self.arms[arm], self.arms[rival]]]).any(axis=0)
        documents = sorted({self.documents[place] for place in self.blocks.document_N[both_N].tolist()})
        return sorted(set(self.blocks.setting_N[both_N].tolist())), documents

    def gain(
        self, arm: str, rival: str, settings: Sequence[str] | None = None, only_slice: str | None = None
    ) -> Estimate:
        """Gain of ``arm`` over ``rival``; at all settings together, as many tokens at each, or at those named; of all slices or
        of one. `TooFewDocumentsError` if both were timed on fewer than two documents at one of the settings."""
        names = self.shared(arm, rival)[0] if settings is None else settings
        parts = [self._at(arm, rival, name, only_slice) for name in names]
        if not parts:
            raise TooFewDocumentsError(f"{arm} and {rival} were timed in no block together. Time both together.")
        sums_S2DF = np.array([part.sums_2DF for part in parts])
        count = int((sums_S2DF > 0).any(axis=(0, 1, 3)).sum())
        total_S21F = sums_S2DF.sum(axis=2, keepdims=True)
        value, without_D = float(_log_ratio(total_S21F)[0]), _log_ratio(total_S21F - sums_S2DF)
        without_D = without_D[(sums_S2DF > 0).any(axis=(0, 1, 3))]
        variance = (count - 1) / count * np.square(without_D - without_D.mean()).sum()
        timed = min(part.documents for part in parts)
        basis = REPLAYED if all(part.covered for part in parts) else CLOCK
        prompts = len(set().union(*(part.prompts for part in parts)))
        return Estimate(value, math.sqrt(variance), float(timed - 1), timed, prompts, basis)

    def documents_of(self, arm: str, rival: str, of_slice: str) -> int:
        """Documents that the gain of a slice rests on, at the setting with the fewest: of recorded texts, or of timed prompts."""
        arms, counts = [self.arms[arm], self.arms[rival]], []
        for setting in self.shared(arm, rival)[0]:
            known_N, timed_N = (some.of_both(arms, setting, of_slice) for some in (self.texts, self.blocks))
            kept = self.texts.document_N[known_N] if known_N.any() else self.blocks.document_N[timed_N]
            counts.append(len(set(kept.tolist())))
        return min(counts, default=0)

    def _at(self, arm: str, rival: str, setting: str, only_slice: str | None) -> "_Part":
        one = frozenset({arm, rival}) in self.same.get(setting, ())
        arms = [self.arms[rival], self.arms[rival]] if one else [self.arms[arm], self.arms[rival]]
        text_N = self.texts.of_both(arms, setting, only_slice)
        timed_N = self.blocks.of_both([self.arms[arm], self.arms[rival]], setting, None)
        several = len(set(self.texts.document_N[text_N].tolist())) > 1
        covered = several and not np.isnan(self.blocks.amounts_FAN[1][arms][:, timed_N]).any()
        if not covered:
            timed_N = self.blocks.of_both([self.arms[arm], self.arms[rival]], setting, only_slice)
        documents, count = len(set(self.blocks.document_N[timed_N].tolist())), len(self.documents)
        if documents < 2:
            where = setting if only_slice is None else f"{setting}, {only_slice}"
            raise TooFewDocumentsError(f"{arm} and {rival} were timed on fewer than 2 documents at {where}. Time more.")
        sums = []
        for side in arms:
            seconds_D, profiled_D, tokens_D = self.blocks.sums(side, timed_N, count)
            known = [profiled_D, *self.texts.sums(side, text_N, count)] if covered else [tokens_D] * 3
            sums.append([seconds_D, *known])
        prompts = set(self.blocks.prompt_N[timed_N].tolist())
        return _Part(np.array(sums).swapaxes(1, 2), bool(covered), documents, prompts)


@dataclass(frozen=True)
class _Part:
    """Both arms at one setting: sums of y, x, X and T by document; without replay x, X and T are all tokens, which makes
    (Σ y / Σ x) (Σ X / Σ T) the clock's Σ y / Σ n."""

    sums_2DF: np.ndarray
    covered: bool
    documents: int  # that were timed
    prompts: set[str]


def _log_ratio(sums_S2DF: np.ndarray) -> np.ndarray:
    """ln of the rival's seconds per token over the arm's [D], as means over settings."""
    if not (sums_S2DF > 1e-12).all():
        raise TooFewDocumentsError("one document holds all that was timed or replayed at a setting. Time more.")
    y, x, replayed, tokens = np.moveaxis(sums_S2DF, -1, 0)
    seconds_2D = (y / x * replayed / tokens).mean(axis=0)
    return np.asarray(np.log(seconds_2D[1]) - np.log(seconds_2D[0]))
