"""Models that stop drafting where a token is unlikely to be accepted: features, network and rule.

What a model reads of a drafted token, written once for collection, training and decoding:

    law       concat(largest probabilities of the draft at temperature 1, descending; its entropy in nats)
    before    the draft's hidden state whose logits give the token's distribution
    behind    the draft's hidden state after the token was fed

``law`` and ``before`` are known before the token is drawn; ``behind`` sees the token, and is known with the next logits.
States are cast to float16 wherever they are used, so that a served vector equals a stored one bit for bit. The network:

    r = (x - μ) / σ
    mlp        logit = W_n act( … act(W_1 r + b_1) …) + b_n             (MCSD: 512 and 128 units on a state, 64 on probabilities)
    residual   h ← h + silu(W_i h + b_i), i = 1..depth;  logit = w h + b  (SpecDec++'s head, from h = r)

Without hidden layers the MLP is a logistic regression. The rule, of numbers and of arrays alike:

    P̂ = σ(scale · logit + bias + rise · drafted)            calibrated at every sampling setting; drafted: tokens before this one
    score = P̂ of the token, or with ``product`` Π P̂ along the draft: that it survives with all before it
    stop where score < threshold, after at least ``min_tokens``; a token's own score is not computed before

``keeps``: the token that is about to be drawn where the rule stops is still drawn and verified, as in MCSD and SpecDec++.
Either way what is drawn is verified: lossless. Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: B rows,
T most likely tokens, K tapped layers, D hidden size, F features.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from predictors.config import Checked, Count, Positive, Probability, Share, Whole, one_of
from predictors.network import Mlp, Standardised, loaded
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw

LAW, BEFORE, BEHIND = INPUTS = ("law", "before", "behind")
MLP, RESIDUAL = SHAPES = ("mlp", "residual")
LARGEST = 700.0  # exponent that a number holds


@dataclass(frozen=True)
class StopSpec:
    """Inputs of stop models: tapped ``draft_layers`` (Hugging Face numbers), their size, and the ``top`` likeliest tokens."""

    draft_layers: tuple[int, ...]
    draft_hidden_size: int
    top: int

    @property
    def state_size(self) -> int:
        return len(self.draft_layers) * self.draft_hidden_size

    def size(self, inputs: str) -> int:
        """Return how many numbers a model of these ``inputs`` reads."""
        return self.top + 1 if inputs == LAW else self.state_size


def features_of(law: NextLaw, spec: StopSpec, inputs: str) -> Tensor:
    """Read raw features [F] in float32 of a model of these ``inputs`` at a pass whose logits are ``law``."""
    if inputs == LAW:
        return torch.cat([law.likeliest(spec.top), law.entropy.float().reshape(1)])
    if law.hidden_KD is None:
        raise ValueError(
            "this controller reads the draft's hidden states, and the decoder taps none. Use build_decoder."
        )
    return law.hidden_KD.reshape(-1).to(torch.float16).float()


@dataclass(frozen=True)
class NetworkShape(Checked):
    """Shape of a stop network: ``hidden_sizes`` of an MLP, or the ``depth`` of a residual network."""

    shape: Annotated[str, one_of(*SHAPES)] = MLP
    hidden_sizes: tuple[Count, ...] = ()
    depth: Count = 3
    dropout: Share = 0.0


class StopNetwork(Standardised):
    """Network of a stop model: logits [B] of raw rows [B, F]."""

    def __init__(self, num_features: int, shape: NetworkShape) -> None:
        super().__init__(num_features)
        residual = shape.shape == RESIDUAL
        self.blocks = nn.ModuleList(
            nn.Linear(num_features, num_features) for _ in range(shape.depth if residual else 0)
        )
        hidden_sizes = () if residual else shape.hidden_sizes
        self.head = Mlp((num_features, *hidden_sizes), 1, nn.ReLU, shape.dropout)

    def outputs(self, reduced: Tensor) -> Tensor:
        for block in self.blocks:
            reduced = reduced + nn.functional.silu(block(reduced))
        return self.head(reduced).squeeze(-1)


def build_stop_network(
    num_features: int, shape: NetworkShape, tensors: Mapping[str, Tensor], source: str
) -> StopNetwork:
    """Build the network with ``tensors`` as weights, in evaluation mode."""
    sized = partial(StopNetwork, num_features, shape)
    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's network")


def sigmoid(value: Any) -> Any:
    """Return σ of a number or an array, NaN of NaN. A number takes no array operation: those are slow after a pass of a model."""
    if isinstance(value, float):
        return 1 / (1 + math.exp(-value)) if not value < -LARGEST else 0.0
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-value))


@dataclass(frozen=True)
class StopCalibration(Checked):
    """Calibration of a stop model: ``scale`` and ``bias`` of the logit (Platt)."""

    scale: Positive = 1.0
    bias: float = 0.0

    def probability(self, logit: Any) -> Any:
        """Calibrate a logit or an array of them to a probability."""
        return sigmoid(self.scale * logit + self.bias)


@dataclass(frozen=True)
class RisingCalibration(StopCalibration):
    """Calibration whose bias grows by ``rise`` with every token drafted before. What a model misses is alike along a draft, so
    that one which is still alive is better than its tokens look one by one."""

    rise: float = 0.0

    def after(self, drafted: Any, logit: Any) -> Any:
        """Calibrate the logit of a token after ``drafted`` others, as `probability`; numbers or arrays."""
        return sigmoid(self.scale * logit + self.bias + self.rise * drafted)


@dataclass(frozen=True)
class StopRule(Checked):
    """Rule that stops drafting, by the module's formula. A ``threshold`` of 0 never stops."""

    threshold: Probability
    product: bool = False
    keeps: bool = False
    min_tokens: Whole = 1

    @property
    def asks(self) -> bool:
        """True if any score could stop drafting."""
        return self.threshold > 0

    def asks_at(self, drafted: Any, inputs: str) -> Any:
        """Tell whether the score after ``drafted`` tokens, number or array, can matter and is known to a model of ``inputs``."""
        known = (drafted > 0) | (inputs != BEHIND)
        return known & self.asks & (self.product | (drafted >= self.min_tokens))

    def stops(self, score: Any, drafted: Any) -> Any:
        """Tell whether drafting stops at such a score after ``drafted`` tokens; numbers or arrays."""
        return (score < self.threshold) & (drafted >= self.min_tokens)


@dataclass(frozen=True)
class StopPrices:
    """Prices that rules were chosen by: `predictors.latency.prices.RoundPrices.draft_cost` by the latency profile
    ``profile_hash``."""

    draft_cost: float
    gamma: int
    context: float
    profile_hash: str


@dataclass(frozen=True)
class StopSetting(Checked):
    """Rule at captured sampling ``settings``: the ``rule``, and the best ``static_length``, drafted where the rule runs no model.
    ``tried`` is the best rule that runs it, whether it pays or not; ``calibration`` is the model's there."""

    settings: SamplingSettings
    rule: StopRule
    static_length: Whole
    tried: StopRule
    calibration: RisingCalibration = RisingCalibration()
