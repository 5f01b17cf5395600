"""From predicted acceptance to a decision to stop drafting.

    P̂ = σ(scale · logit + bias + rise · drafted)            calibrated at every sampling setting; drafted: tokens before this one
    score = P̂ of the token, or with ``product`` Π P̂ along the draft: that it survives with all before it
    stop where score < threshold, after at least ``min_tokens``; a token's own score is not asked for before

``keeps``: the token that is about to be drawn where the rule says stop is still drawn and verified, as in MCSD (whose score is
the token's own) and SpecDec++ (whose product ends with the token before it). Without it drafting ends before that token. Either
way what is drawn is verified: lossless.
"""

import math
from dataclasses import dataclass

from predictors.config import Checked, Positive, Probability, Whole
from predictors.sampling import SamplingSettings


@dataclass(frozen=True)
class StopCalibration(Checked):
    """``scale`` and ``bias`` of the logit (Platt)."""

    scale: Positive = 1.0
    bias: float = 0.0

    def probability(self, logit: float) -> float:
        """Calibrated, of one logit; NaN of NaN."""
        return _sigmoid(self.scale * logit + self.bias)


@dataclass(frozen=True)
class RisingCalibration(StopCalibration):
    """The bias grows by ``rise`` with every token drafted before. What a model misses is alike along a draft, so that one which
    is still alive is better than its tokens look one by one."""

    rise: float = 0.0

    def after(self, drafted: int, logit: float) -> float:
        """`probability` of a token behind ``drafted`` others."""
        return _sigmoid(self.scale * logit + self.bias + self.rise * drafted)


@dataclass(frozen=True)
class StopRule(Checked):
    """See the module's docstring. A ``threshold`` of 0 never stops."""

    threshold: Probability
    product: bool = False
    keeps: bool = False
    min_tokens: Whole = 1

    @property
    def asks(self) -> bool:
        """Whether any score could stop drafting."""
        return self.threshold > 0

    def asks_at(self, drafted: int) -> bool:
        """Whether the score behind ``drafted`` tokens can matter."""
        return self.asks and (self.product or drafted >= self.min_tokens)


@dataclass(frozen=True)
class StopPrices:
    """What rules were chosen by: `predictors.replay.prices.Prices.draft_cost` by the latency profile ``profile_hash``."""

    draft_cost: float
    gamma: int
    context: float
    profile_hash: str


@dataclass(frozen=True)
class StopSetting(Checked):
    """What is done at captured sampling ``settings``: the ``rule``, and the best ``static_length``, which is drafted where the
    rule never asks. ``tried`` is the best rule that asks, whether it pays or not; ``calibration`` is the model's there."""

    settings: SamplingSettings
    rule: StopRule
    static_length: Whole
    tried: StopRule
    calibration: RisingCalibration = RisingCalibration()


def _sigmoid(value: float) -> float:
    try:
        return 1 / (1 + math.exp(-value))
    except OverflowError:
        return 0.0
