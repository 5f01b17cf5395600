"""An estimated gain, kept as the logarithm of a ratio of rates, and what evidence of its error can show.

    gain = exp(value) - 1,    bound at one-sided level a = exp(value -+ t_{1-a} error) - 1
    smallest log gain that passes = margin + (t_{1-a} + t_{power}) error,    documents' = documents (error / wanted error)²

The t quantile has the estimate's own degrees of freedom. The chance of passing is that over the closest rival; others are farther
away.
"""

import math
from dataclasses import dataclass

from scipy.stats import t as student

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
