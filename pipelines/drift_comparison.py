"""Whether served requests differ from recorded ones: Welch's t test of every statistic, all of them at one rate of false alarms.

    se² = error² + s² / n          t = (x̄ - m) / se          drift where |t| > c = t_{1 - α / 2k}
    detectable = (c + t_{1 - β}) se

m and its error are the reference's, over D documents; x̄ and s are of n requests of the window, which count as independent; α is
the rate of false alarms of a call with k comparisons (Bonferroni), β the rate at which a shift of the detectable size is missed.
Degrees of freedom by Satterthwaite.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy.stats import t as student

from predictors.monitoring import Level

MISS_RATE = 0.1


@dataclass(frozen=True)
class Comparison:
    """A ``statistic`` at a ``setting``: the reference's mean, the mean ``observed`` in ``requests``, ``t``, the shift that would
    be missed at `MISS_RATE` (``detectable``), and the verdict."""

    setting: str
    statistic: str
    reference: float
    observed: float
    requests: int
    t: float
    detectable: float
    drifted: bool


Samples = Mapping[tuple[str, str], tuple[Level, Sequence[float]]]


def compared(samples: Samples, false_alarm: float) -> list[Comparison]:
    """Compare all ``samples``, by setting and statistic a reference and at least two values, so that in a stationary stream any
    drift is found at the rate ``false_alarm``."""
    return [_compared(*name, level, values, false_alarm / len(samples)) for name, (level, values) in samples.items()]


def _compared(setting: str, statistic: str, level: Level, values: Sequence[float], rate: float) -> Comparison:
    own, theirs = variance(values) / len(values), level.error**2
    squared, shift = own + theirs, fmean(values) - level.mean
    if squared == 0:  # nothing varies, here or there
        t = 0.0 if math.isclose(fmean(values), level.mean) else math.copysign(math.inf, shift)
        return Comparison(setting, statistic, level.mean, fmean(values), len(values), t, 0.0, t != 0)
    freedom = squared**2 / (own**2 / (len(values) - 1) + theirs**2 / (level.documents - 1))
    error, critical = math.sqrt(squared), float(student.ppf(1 - rate / 2, freedom))
    detectable = (critical + float(student.ppf(1 - MISS_RATE, freedom))) * error
    t = shift / error
    return Comparison(setting, statistic, level.mean, fmean(values), len(values), t, detectable, abs(t) > critical)
