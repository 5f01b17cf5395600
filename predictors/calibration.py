"""Calibrated class probabilities: temperature scaling on natural class shares, with an optional prior correction.

    P(c | x) = softmax_c( logits_c / t + b_c ),     b_c = log prior_natural(c) - log prior_training(c)

Balanced training (SMOTE, class weights) tells the head that classes are equally frequent; ``b`` takes that back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.network import CLASSES


@dataclass(frozen=True)
class Calibration:
    """``temperature`` t > 0 and one ``bias`` per class."""

    temperature: float = 1.0
    bias: tuple[float, ...] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}.")
        if len(self.bias) != len(CLASSES):
            raise ValueError(f"bias must have one entry per class ({', '.join(CLASSES)}), got {list(self.bias)}.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities [B, 3] of logits [B, 3]."""
        return torch.softmax(logits / self.temperature + logits.new_tensor(self.bias), dim=-1)
