"""From class probabilities to a class: the paper's argmax, or thresholds chosen for what decisions are worth.

    none   if P(none) >= a
    all    else if P(all) >= b
    some   otherwise: draft while max_x q(x) >= ε

With a and b unset the class is the argmax. Being wrong does not cost the same on both sides - a draft pass costs a fraction of
a target pass, a missed token a whole one - so "none" should wait for more than the largest share.

Shape suffix: B rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NONE, SOME, ALL = 0, 1, 2


@dataclass(frozen=True)
class DecisionRule:
    """``epsilon``: confidence below which a soft draft stops; ``none_probability``, ``all_probability``: a and b."""

    epsilon: float
    none_probability: float | None = None
    all_probability: float | None = None

    def __post_init__(self) -> None:
        if (self.none_probability is None) != (self.all_probability is None):
            raise ValueError("set both none_probability and all_probability, or neither (argmax).")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon must lie in [0, 1], got {self.epsilon}.")

    def classes(self, probabilities_B3: Tensor) -> Tensor:
        """Classes [B] int64 of probabilities [B, 3]."""
        if self.none_probability is None or self.all_probability is None:
            return probabilities_B3.argmax(dim=1)
        soft_or_all = torch.where(probabilities_B3[:, ALL] >= self.all_probability, ALL, SOME)
        return torch.where(probabilities_B3[:, NONE] >= self.none_probability, NONE, soft_or_all)


@dataclass(frozen=True)
class HRADThresholds:
    """``rule``: from probabilities to a class; ``max_distance``: the largest squared distance (mean squared standardised
    coordinate of the reduced features) the head is trusted at; ``static_gamma``: the best static setting."""

    rule: DecisionRule
    max_distance: float
    static_gamma: int

    def __post_init__(self) -> None:
        if self.max_distance <= 0:
            raise ValueError(f"max_distance must be > 0, got {self.max_distance}.")
        if self.static_gamma < 0:
            raise ValueError(f"static_gamma must be >= 0, got {self.static_gamma}.")
