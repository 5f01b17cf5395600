"""Calibrated class probabilities: temperature scaling on natural class shares, with an optional prior correction.

    P(c | x) = softmax_c( logits_c / t + b_c ),     b_c = log prior_natural(c) - log prior_training(c)

Balanced training (SMOTE, class weights) tells the head that classes are equally frequent; ``b`` takes that back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.config import Checked, Positive


@dataclass(frozen=True)
class Calibration(Checked):
    """``temperature`` t > 0 and one ``bias`` per class (by default H-RAD's three)."""

    temperature: Positive = 1.0
    bias: tuple[float, ...] = (0.0, 0.0, 0.0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities [B, L] of logits [B, L]."""
        return torch.softmax(logits / self.temperature + logits.new_tensor(self.bias), dim=-1)
