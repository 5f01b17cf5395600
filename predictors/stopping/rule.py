"""From predicted acceptance to a decision to stop drafting.

    P̂ = σ(scale · logit + bias)                             calibrated on drafts that no rule cut short
    score = P̂ of the token, or with ``product`` Π P̂ along the draft: that it survives with all before it
    stop where score < threshold, after at least ``min_tokens``; a token's own score is not asked for before

``keeps``: the token that is about to be drawn where the rule says stop is still drawn and verified, as in MCSD (whose score is
the token's own) and SpecDec++ (whose product ends with the token before it). Without it drafting ends before that token. Either
way what is drawn is verified: lossless.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.sampling import SamplingSettings


@dataclass(frozen=True)
class StopCalibration:
    """``scale`` > 0 and ``bias`` of the logit (Platt)."""

    scale: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale must be > 0, got {self.scale}.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities of logits, any shape."""
        return torch.sigmoid(self.scale * logits + self.bias)


@dataclass(frozen=True)
class StopRule:
    """See the module's docstring. A ``threshold`` of 0 never stops."""

    threshold: float
    product: bool = False
    keeps: bool = False
    min_tokens: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must lie in [0, 1], got {self.threshold}.")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens must be >= 0, got {self.min_tokens}.")

    @property
    def asks(self) -> bool:
        """Whether any score could stop drafting."""
        return self.threshold > 0

    def asks_at(self, drafted: int) -> bool:
        """Whether the score behind ``drafted`` tokens can matter."""
        return self.asks and (self.product or drafted >= self.min_tokens)


@dataclass(frozen=True)
class StopPrices:
    """What rules were chosen by: a drafted token of a chain of ``gamma`` behind ``context`` tokens, in target passes
    (`predictors.latency.throughput.draft_cost`), from the latency profile ``profile_hash``."""

    draft_cost: float
    gamma: int
    context: float
    profile_hash: str


@dataclass(frozen=True)
class StopSetting:
    """What is done at captured sampling ``settings``: the ``rule``, and the best ``static_length``, which is drafted where the
    rule never asks. ``tried`` is the best rule that asks, whether it pays or not."""

    settings: SamplingSettings
    rule: StopRule
    static_length: int
    tried: StopRule

    def __post_init__(self) -> None:
        if self.static_length < 0:
            raise ValueError(f"static_length must be >= 0, got {self.static_length}.")
