"""Whether served requests differ from recorded ones: Welch's t test of every statistic, all of them at one rate of false alarms.

    se² = error² + error'²        t = (r' - r) / se        drift where |t| > c = t_{1 - α / 2k}
    detectable = (c + t_{1 - β}) se

r and its error are the reference's and r' and its error the window's, both ratios of sums (`predictors.monitoring`): clustered by
document there, of requests that count as independent here. α is the rate of false alarms of a call with k comparisons
(Bonferroni), β the rate at which a shift of the detectable size is missed. Degrees of freedom by Satterthwaite.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from predictors.monitoring import Level

MISS_RATE = 0.1


@dataclass(frozen=True)
class Comparison:
    """A ``statistic`` at a ``setting``: the reference's ratio, the one ``observed`` in ``requests``, ``t``, the shift that would
    be missed at `MISS_RATE` (``detectable``), and the verdict."""

    setting: str
    statistic: str
    reference: float
    observed: float
    requests: int
    t: float
    detectable: float
    drifted: bool


Samples = Mapping[tuple[str, str], tuple[Level, Level]]


def compared(samples: Samples, false_alarm: float) -> list[Comparison]:
    """Compare all ``samples``, by setting and statistic the reference's level and the window's, so that in a stationary stream
    any drift is found at the rate ``false_alarm``."""
    return [_compared(*name, *levels, false_alarm / len(samples)) for name, levels in samples.items()]


def _compared(setting: str, statistic: str, reference: Level, served: Level, rate: float) -> Comparison:
    own, theirs = served.error**2, reference.error**2
    squared, shift = own + theirs, served.mean - reference.mean
    if squared == 0:  # nothing varies, here or there
        t = 0.0 if math.isclose(served.mean, reference.mean) else math.copysign(math.inf, shift)
        return Comparison(setting, statistic, reference.mean, served.mean, served.requests, t, 0.0, t != 0)
    freedom = squared**2 / (own**2 / served.freedom + theirs**2 / reference.freedom)
    error, critical = math.sqrt(squared), exceeded(rate, freedom)
    detectable = (critical + exceeded(2 * MISS_RATE, freedom)) * error
    t = shift / error
    return Comparison(
        setting, statistic, reference.mean, served.mean, served.requests, t, detectable, abs(t) > critical
    )


def exceeded(rate: float, freedom: float) -> float:
    """The t that |t| of Student's distribution exceeds at that ``rate`` (>= 1e-7), to 1e-4 of it. Without scipy, which hosts that
    only serve have not: by the trapezoidal rule over s, t = sinh s."""
    s_P, t_P, slope_P = _places()
    density = np.exp(-(freedom + 1) / 2 * np.log1p(t_P**2 / freedom)) * slope_P
    above = np.append(0.0, np.cumsum(((density[1:] + density[:-1]) / 2)[::-1]))  # ascending: from the largest t down
    return float(np.sinh(np.interp(rate, above / above[-1], s_P[::-1])))


@cache
def _places() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """s, t and dt / ds, evenly in s: t up to 5e12."""
    s_P = np.linspace(0, 30, 10_001)
    return s_P, np.sinh(s_P), np.cosh(s_P)
