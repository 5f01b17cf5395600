"""From class probabilities to a decision, chosen for what decisions are worth.

H-RAD's classes, by the paper's argmax or by thresholds (a and b unset: the argmax):

    none   if P(none) >= a
    all    else if P(all) >= b
    some   otherwise: draft while max_x q(x) >= ε

Being wrong does not cost the same on both sides - a draft pass costs a fraction of a target pass, a missed token a whole one - so
"none" should wait for more than the largest share.

The explicit predictor's lengths, A accepted of the next γ tokens, by the most likely one or by what a length n is worth:

    argmax        n = argmax_a P(A = a)                                          (the explicit rule SpecBranch compares with)
    expectation   n = argmax_n E[min(A, n) + 1] / (1 + draft cost · n),          E[min(A, n)] = Σ_{j <= n} P(A >= j)

Shape suffixes: B rows, L classes (lengths 0..γ).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

NONE, SOME, ALL = 0, 1, 2
ARGMAX, EXPECTATION = LENGTH_CHOICES = ("argmax", "expectation")


@dataclass(frozen=True)
class DecisionRule:
    """H-RAD's: ``epsilon``, the confidence below which a soft draft stops; ``none_probability``, ``all_probability``: a and b."""

    epsilon: float
    none_probability: float | None = None
    all_probability: float | None = None

    def __post_init__(self) -> None:
        if (self.none_probability is None) != (self.all_probability is None):
            raise ValueError("set both none_probability and all_probability, or neither (argmax).")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon must lie in [0, 1], got {self.epsilon}.")

    @property
    def reads_head(self) -> bool:
        """Whether any probability could change its class; else it is always "some", and no head need be asked."""
        if self.none_probability is None or self.all_probability is None:
            return True
        return min(self.none_probability, self.all_probability) <= 1

    @property
    def argmax(self) -> "DecisionRule":
        """The same soft draft after the argmax."""
        return DecisionRule(self.epsilon)

    def classes(self, probabilities_B3: Tensor) -> Tensor:
        """Classes [B] int64 of probabilities [B, 3]."""
        if self.none_probability is None or self.all_probability is None:
            return probabilities_B3.argmax(dim=1)
        soft_or_all = torch.where(probabilities_B3[:, ALL] >= self.all_probability, ALL, SOME)
        return torch.where(probabilities_B3[:, NONE] >= self.none_probability, NONE, soft_or_all)


@dataclass(frozen=True)
class LengthRule:
    """The explicit predictor's rule. ``choice``: ``argmax`` or ``expectation``; ``draft_cost``: a drafted token in target passes.

    Examples
    --------
    >>> law = torch.tensor([[0.5, 0.0, 0.0, 0.5]])  # none or all of three tokens
    >>> [int(LengthRule(choice, draft_cost=0.1).lengths(law)) for choice in LENGTH_CHOICES]
    [0, 3]
    """

    choice: str
    draft_cost: float

    def __post_init__(self) -> None:
        if self.choice not in LENGTH_CHOICES:
            raise ValueError(f"unknown choice {self.choice!r}; known: {', '.join(LENGTH_CHOICES)}.")
        if self.draft_cost < 0:
            raise ValueError(f"draft_cost must be >= 0 target passes, got {self.draft_cost}.")

    @property
    def argmax(self) -> "LengthRule":
        """The most likely length instead."""
        return LengthRule(ARGMAX, self.draft_cost)

    def lengths(self, probabilities_BL: Tensor) -> Tensor:
        """Tokens to draft [B] int64 of probabilities [B, γ + 1]; of equals the shortest."""
        if self.choice == ARGMAX:
            return probabilities_BL.argmax(dim=1)
        reached_BL = probabilities_BL.flip(1).cumsum(dim=1).flip(1)  # P(A >= j)
        tokens_BL = reached_BL.cumsum(dim=1)  # P(A >= 0) = 1 stands for the token the target adds
        lengths_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        return (tokens_BL / (1 + self.draft_cost * lengths_L)).argmax(dim=1)


@dataclass(frozen=True)
class Thresholds:
    """What a learned controller is trusted with. ``max_distance``: the largest squared distance (mean squared standardised
    coordinate of the reduced features) the head is trusted at; ``static_gamma``: the best static setting, ``retained_gamma``
    that of what is retained of a branch (``None``: the same)."""

    max_distance: float
    static_gamma: int
    retained_gamma: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.max_distance <= 0:
            raise ValueError(f"max_distance must be > 0, got {self.max_distance}.")
        for name in ("static_gamma", "retained_gamma"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}.")

    def static(self, retains: bool) -> int:
        """The best static setting for drafting, or for what is retained of a branch."""
        return self.static_gamma if not retains or self.retained_gamma is None else self.retained_gamma


@dataclass(frozen=True)
class HRADThresholds(Thresholds):
    """``rule``: from probabilities to a class; ``retention``: the same where a branch survived, whose tokens cost nothing any
    more (``None``: the same rule)."""

    rule: DecisionRule
    retention: DecisionRule | None = None

    def of(self, retains: bool) -> DecisionRule:
        """The rule for drafting, or for what is retained of a branch."""
        return self.rule if not retains or self.retention is None else self.retention


@dataclass(frozen=True)
class LengthThresholds(Thresholds):
    """``rule``: from probabilities to a length; ``retention`` as in `HRADThresholds`."""

    rule: LengthRule
    retention: LengthRule | None = None

    def of(self, retains: bool) -> LengthRule:
        """The rule for drafting, or for what is retained of a branch."""
        return self.rule if not retains or self.retention is None else self.retention
