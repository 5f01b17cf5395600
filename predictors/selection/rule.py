"""How a selector's expected tokens become a choice, and what is drafted without one.

    surplus     s_a = E_a(x) - κ ρ T_a        a* = argmax s, drafted if s_a* - s_static > margin;  static otherwise
    ratio       s_a = log E_a(x) - log T_a
    static      argmax_a Ē_a / T_a,  ρ = Ē_static / T_static          Ē: mean over the training roots of one sampling setting

Long-run throughput is a ratio of sums over steps, Σ E / Σ T, and what maximises it is not each step's own ratio: a step is worth
its tokens less what its time would bring elsewhere, ρ* T with ρ* the throughput of the choices themselves (renewal reward). κ
says how far these are ahead of the static tree. The ratio is for networks that know E only up to a factor. T for ρ is taken at
the roots' mean context. Shape suffixes: N roots, A actions.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from predictors.config import Checked, one_of
from predictors.latency.actions import Prices
from predictors.sampling import SamplingSettings

SURPLUS, RATIO = SCORES = ("surplus", "ratio")
NEVER = 1e9  # a margin that no choice promises


@dataclass(frozen=True)
class Static:
    """The best static action's ``place`` and its tokens per second, ``rate``."""

    place: int
    rate: float


@dataclass(frozen=True)
class Setting:
    """A sampling setting of the training roots."""

    temperature: float
    top_k: int
    top_p: float
    context: float  # mean
    efficiency: tuple[float, ...]  # mean expected tokens of a step [A]

    @property
    def sampling(self) -> SamplingSettings:
        return SamplingSettings(self.temperature, self.top_k, self.top_p)

    def static(self, prices: Prices) -> Static:
        """argmax_a Ē_a / T_a."""
        rates_A = np.array(self.efficiency) / prices.at(self.context)
        place = int(rates_A.argmax())
        return Static(place, float(rates_A[place]))


@dataclass(frozen=True)
class SelectionRule(Checked):
    """See the module's docstring."""

    score: Annotated[str, one_of(*SCORES)]
    rate_factor: float  # κ
    margin: float  # of the score, that a choice must be ahead of the static one; `NEVER`: nothing is asked
    max_distance: float  # the largest trusted squared distance of features from the training rows
    settings: tuple[Setting, ...]

    @property
    def asks(self) -> bool:
        """Whether any promise can be enough."""
        return self.margin < NEVER

    def static(self, settings: SamplingSettings, prices: Prices) -> Static:
        """The best static action at the training roots' setting nearest to ``settings``."""
        return min(self.settings, key=lambda setting: setting.sampling.distance(settings)).static(prices)

    def choose(self, tokens_A: np.ndarray, seconds_A: np.ndarray, static: Static) -> int:
        """The place of the action to draft, from expected tokens and seconds of a step by action."""
        return int(self.places(tokens_A[None], seconds_A[None], np.array([static.place]), np.array([static.rate]))[0])

    def places(
        self, tokens_NA: np.ndarray, seconds_NA: np.ndarray, static_N: np.ndarray, rate_N: np.ndarray
    ) -> np.ndarray:
        """`choose` for many roots [N]."""
        if self.score == RATIO:
            scores_NA = np.log(tokens_NA) - np.log(seconds_NA)
        else:
            scores_NA = tokens_NA - self.rate_factor * rate_N[:, None] * seconds_NA
        best_N, rows_N = scores_NA.argmax(axis=1), np.arange(len(scores_NA))
        lead_N = scores_NA[rows_N, best_N] - scores_NA[rows_N, static_N]
        return np.where(lead_N > self.margin, best_N, static_N)
