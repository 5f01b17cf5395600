"""What evidence can show: the smallest gain that it would pass, and how many documents another would need.

    smallest log gain = margin + (t_{1-a} + t_{power}) error,    documents' = documents (error / wanted error)²

a is the look's one-sided level. The chance is that of the closest rival; others are farther away.
"""

import math

from scipy.stats import t as student

from pipelines.evidence.estimate import Estimate


def detectable(one: Estimate, level: float, margin: float, power: float) -> float:
    """The smallest true gain that passes at one-sided ``level`` above ``margin`` with probability ``power``."""
    return math.expm1(math.log1p(margin) + _quantiles(one, level, power) * one.error)


def documents_needed(one: Estimate, level: float, margin: float, power: float) -> int | None:
    """Documents with which the estimated gain, were it true, would pass so often; ``None`` where it is not above the margin."""
    above = one.value - math.log1p(margin)
    if above <= 0:
        return None
    return math.ceil(one.documents * (_quantiles(one, level, power) * one.error / above) ** 2)


def _quantiles(one: Estimate, level: float, power: float) -> float:
    return float(student.ppf(1 - level, one.freedom) + student.ppf(power, one.freedom))
