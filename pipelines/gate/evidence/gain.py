"""The gain of an arm over a rival: a difference estimator in ratio-of-sums form, with its error by jackknife over documents.

    rate of an arm = T / C,    T, C = Σ_h W_h mean over settings of ( replayed mean of texts + mean of (clock - prediction) )

T are tokens and C seconds of a text; h are slices, and W_h is the share of documents that a slice has in the mix. Means are over
all replayed texts of a slice, and over its prompts on which both arms were timed. Where replay does not cover both arms, the
estimate rests on the clock alone. Prices are factors on the latency profile's components, fitted anew without every document.

    variance = Σ_h (n_h - 1) / n_h Σ_{d in h} (θ_(d) - mean)²,    θ = ln(rate of the arm / rate of the rival)

Degrees of freedom are Satterthwaite's over slices, by documents that were timed. Sources: Särndal, Swensson and Wretman, Model
Assisted Survey Sampling, 1992, section 6.3 (difference estimator); Shao and Tu, The Jackknife and Bootstrap, 1995, section 6.2
(stratified jackknife).

The gain is exp(value) - 1, of the logarithm of a ratio of rates; t has the estimate's own degrees of freedom:

    bound = exp(value -+ t_{1-a} error) - 1,    smallest log gain that passes = margin + (t_{1-a} + t_{power}) error
    documents' = documents (error / wanted error)²

Logarithms of gains by slice are pooled (`pipelines.gate.evidence.pooling`); bounds: quantiles of the mixture over τ (suffix T).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import norm
from scipy.stats import t as student

from pipelines.gate.evidence.ledger import PARTS, SECONDS, TOKENS, Ledger, Replayed, TimedBlocks, V, ledger
from pipelines.gate.evidence.pooling import PooledEffects
from pipelines.gate.evidence.prices import K

GRID_T = np.linspace(0.0, 4.0, 200)  # τ over its scale
CORRECTED, CLOCK = "replay corrected by the clock", "clock"  # what an estimate rests on
BASES = (CORRECTED, CLOCK)
SIDE, LEVEL = 0.025, 0.05  # one-sided levels of a 95 % interval, and of a 95 % bound


@dataclass(frozen=True)
class Estimate:
    """Of a gain over a rival.

    Examples
    --------
    >>> round(Estimate(0.1, 0.0, 5.0, 6, 6).gain, 3)
    0.105
    """

    value: float  # log ratio of the rates
    error: float  # its standard error
    freedom: float  # degrees of freedom of the error
    documents: int  # that both arms were timed on
    prompts: int  # that both arms were timed on
    basis: str = CLOCK  # or `CORRECTED`

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

    def quantile(self, level: float) -> float:
        """Of the error at one-sided ``level``, in log units."""
        return float(student.ppf(1 - level, self.freedom)) * self.error

    def low(self, level: float = LEVEL) -> float:
        """The gain's lower bound at one-sided ``level``."""
        return math.expm1(self.value - self.quantile(level))

    def high(self, level: float = LEVEL) -> float:
        """The gain's upper bound at one-sided ``level``."""
        return math.expm1(self.value + self.quantile(level))

    def interval(self) -> dict[str, float | None]:
        """The gain with its 95 % interval."""
        return {"value": self.gain, "low": self.low(SIDE), "high": self.high(SIDE)}

    def detectable(self, level: float, margin: float, power: float) -> float:
        """The smallest true gain that passes at one-sided ``level`` above ``margin`` with probability ``power``."""
        return math.expm1(math.log1p(margin) + self._quantiles(level, power) * self.error)

    def documents_needed(self, level: float, margin: float, power: float) -> int | None:
        """Documents with which the estimated gain, were it true, would pass so often; ``None``: it is not above the margin, or by
        so little that no number of documents tells it from that."""
        above = self.value - math.log1p(margin)
        if above <= 0:
            return None
        wanted = self._quantiles(level, power) * self.error / above
        documents = self.documents * wanted * wanted
        return math.ceil(documents) if math.isfinite(documents) else None

    def _quantiles(self, level: float, power: float) -> float:
        return float(student.ppf(1 - level, self.freedom) + student.ppf(power, self.freedom))


def gain(
    blocks: TimedBlocks,
    arm: str,
    rival: str,
    mix: Mapping[str, float] | None = None,
    replayed: Replayed | None = None,
    only_setting: str | None = None,
) -> Estimate:
    """Of ``arm`` over ``rival``; parameters as of `ledger`."""
    pair = ledger(blocks, (arm, rival), mix, replayed, only_setting)
    whole_2V, without_D2V = _totals(pair)
    factors_K, factors_DK = np.zeros(K), np.zeros((len(pair.documents), K))  # of no replayed seconds
    if pair.prices is not None:
        factors_K, factors_DK = pair.prices.factors_K, pair.prices.without_each(pair.documents)
    (value,) = _log_ratio(whole_2V[None], factors_K[None]).tolist()
    variance, freedom = _jackknife(_log_ratio(without_D2V, factors_DK), pair)
    basis = CLOCK if pair.prices is None else CORRECTED
    return Estimate(value, float(np.sqrt(variance)), freedom, int(pair.timed_D.sum()), pair.prompts, basis)


def _totals(pair: Ledger) -> tuple[np.ndarray, np.ndarray]:
    """Both sides' totals over strata [2, V], whole and without every document [D, 2, V]."""
    whole_2V = np.zeros((2, V))
    change_D2V = np.zeros((len(pair.documents), 2, V))
    for stratum, weight in enumerate(pair.weight_H):
        members = pair.stratum_D == stratum
        for count_DS, sums_2DSV in pair.terms:
            count_MS, sums_2MSV = count_DS[members], sums_2DSV[:, members]
            mean_2SV = sums_2MSV.sum(axis=1) / count_MS.sum(axis=0)[:, None]
            left_MS = count_MS.sum(axis=0) - count_MS
            left_2MSV = sums_2MSV.sum(axis=1, keepdims=True) - sums_2MSV
            without_2MSV = left_2MSV / left_MS[..., None]
            whole_2V += weight * mean_2SV.mean(axis=1)
            moved_2MV = weight * (without_2MSV - mean_2SV[:, None]).mean(axis=2)
            change_D2V[members] += moved_2MV.swapaxes(0, 1)
    return whole_2V, whole_2V + change_D2V


def _log_ratio(totals_N2V: np.ndarray, factors_NK: np.ndarray) -> np.ndarray:
    tokens_N2, seconds_N2 = totals_N2V[..., TOKENS], totals_N2V[..., SECONDS]
    seconds_N2 = seconds_N2 + (totals_N2V[..., PARTS:] * factors_NK[:, None]).sum(axis=-1)
    if not (tokens_N2 > 0).all() or not (seconds_N2 > 0).all():
        raise ValueError("corrected tokens or seconds are not positive: replay and clock disagree. Replay the texts.")
    rate_N2 = np.log(tokens_N2) - np.log(seconds_N2)
    return np.asarray(rate_N2[:, 0] - rate_N2[:, 1])


def _jackknife(without_D: np.ndarray, pair: Ledger) -> tuple[float, float]:
    """Variance and degrees of freedom."""
    variances, freedoms = [], []
    for stratum in range(len(pair.weight_H)):
        members = pair.stratum_D == stratum
        count = int(members.sum())
        variances.append((count - 1) / count * np.square(without_D[members] - without_D[members].mean()).sum())
        freedoms.append(max(1, int((members & pair.timed_D).sum()) - 1))
    variance = float(np.sum(variances))
    if variance == 0:
        return 0.0, float(sum(freedoms))
    shares = np.array(variances) / variance
    return variance, float(1 / (np.square(shares) / np.array(freedoms)).sum())


@dataclass(frozen=True)
class SliceGain:
    """A slice's pooled gain with one-sided 95 % bounds; without bounds it is not judged."""

    value: float | None
    low: float | None
    high: float | None
    documents: int
    judged: bool


def slice_gains(
    blocks: TimedBlocks, arm: str, rival: str, least: int, spread: float, replayed: Replayed | None = None
) -> dict[str, SliceGain]:
    """By slice. One with fewer than ``least`` timed documents is not judged; ``spread`` is the scale of τ."""
    counts = {name: _timed(blocks, arm, rival, name) for name in sorted(set(blocks.slice_B.tolist()))}
    judged = [name for name, count in counts.items() if count >= max(2, least)]
    estimates = {name: gain(blocks, arm, rival, {name: 1.0}, replayed) for name in judged}
    found = pooled(estimates, spread)
    return {name: found.get(name, SliceGain(None, None, None, count, False)) for name, count in counts.items()}


def _timed(blocks: TimedBlocks, arm: str, rival: str, name: str) -> int:
    """Documents of a slice on which both were timed, at the setting with the fewest."""
    both_B = blocks.shared(arm, rival)
    settings = set(blocks.setting_B[both_B].tolist())
    kept = [both_B & (blocks.slice_B == name) & (blocks.setting_B == setting) for setting in settings]
    return min((len(set(blocks.document_B[kept_B].tolist())) for kept_B in kept), default=0)


def pooled(estimates: Mapping[str, Estimate], spread: float) -> dict[str, SliceGain]:
    """Pooled gains; one slice by itself borrows nothing."""
    values = np.array([one.value for one in estimates.values()])
    squares = np.array([max(one.quantile(LEVEL) / norm.ppf(1 - LEVEL), 1e-9) ** 2 for one in estimates.values()])
    effects = PooledEffects(values, squares, spread, GRID_T)
    found = {}
    for (name, one), square in zip(estimates.items(), squares.tolist(), strict=True):
        mean_T, variance_T = effects.effect(one.value, square)
        low, high = (_quantile(level, effects.weight_T, mean_T, np.sqrt(variance_T)) for level in (LEVEL, 1 - LEVEL))
        value = float(effects.weight_T @ mean_T)
        found[name] = SliceGain(math.expm1(value), math.expm1(low), math.expm1(high), one.documents, True)
    return found


def _quantile(level: float, weight_T: np.ndarray, mean_T: np.ndarray, deviation_T: np.ndarray) -> float:
    edge = 10 * deviation_T.max()
    low, high = float(mean_T.min() - edge), float(mean_T.max() + edge)
    return float(brentq(lambda x: float((weight_T * ndtr((x - mean_T) / deviation_T)).sum()) - level, low, high))
