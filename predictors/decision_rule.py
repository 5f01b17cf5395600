"""Decisions of heads: from logits to calibrated class probabilities, and from these to the decision of most worth.

    P(c | x) = softmax_c( logits_c / t + b_c ),     b_c = log prior_natural(c) - log prior_training(c)

Balanced training (SMOTE, class weights) makes classes equally frequent for the head; ``b`` takes that back.

H-RAD's classes, by the paper's argmax or by thresholds (a and b unset: the argmax):

    none   if P(none) >= a
    all    else if P(all) >= b
    some   otherwise: draft while max_x q(x) >= ε

The explicit predictor's lengths, A accepted of the next γ tokens, by the most likely one or by what a length n is worth:

    argmax        n = argmax_a P(A = a)                                          (the explicit rule SpecBranch compares with)
    expectation   n = argmax_n E[min(A, n) + 1] / (1 + draft cost · n),          E[min(A, n)] = Σ_{j <= n} P(A >= j)

Shape suffixes: B rows, L classes (lengths 0..γ).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from predictors.config import Checked, NotNegative, Positive, Probability, Whole, one_of
from predictors.sampling import SamplingSettings

NONE, SOME, ALL = 0, 1, 2
ARGMAX, EXPECTATION = LENGTH_CHOICES = ("argmax", "expectation")


@dataclass(frozen=True)
class Calibration(Checked):
    """Calibration of class logits: ``temperature`` t > 0 and one ``bias`` per class (by default H-RAD's three)."""

    temperature: Positive = 1.0
    bias: tuple[float, ...] = (0.0, 0.0, 0.0)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrate logits [B, L] to probabilities [B, L]."""
        return torch.softmax(logits / self.temperature + logits.new_tensor(self.bias), dim=-1)


@dataclass(frozen=True)
class DecisionRule(Checked):
    """H-RAD's rule: ``epsilon``, confidence where a soft draft stops; ``none_probability``, ``all_probability``: a and b."""

    epsilon: Probability
    none_probability: float | None = None
    all_probability: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.none_probability is None) != (self.all_probability is None):
            raise ValueError("set both none_probability and all_probability, or neither (argmax).")

    @property
    def settled(self) -> int | None:
        """The decision that no probability could change, so that no head need be run; ``None``: it depends on them."""
        if self.none_probability is None or self.all_probability is None:
            return None
        return SOME if min(self.none_probability, self.all_probability) > 1 else None

    def limits(self, decision: int, gamma: int) -> tuple[int, float | None]:
        """Return the most tokens, of ``gamma``, that a decision allows, and the confidence below which a soft draft stops."""
        return 0 if decision == NONE else gamma, self.epsilon if decision == SOME else None

    @property
    def argmax(self) -> "DecisionRule":
        """The argmax rule with the same soft draft."""
        return DecisionRule(self.epsilon)

    def decisions(self, probabilities_B3: Tensor) -> Tensor:
        """Decide: classes [B] int64 of probabilities [B, 3]."""
        if self.none_probability is None or self.all_probability is None:
            return probabilities_B3.argmax(dim=1)
        soft_or_all = torch.where(probabilities_B3[:, ALL] >= self.all_probability, ALL, SOME)
        return torch.where(probabilities_B3[:, NONE] >= self.none_probability, NONE, soft_or_all)


@dataclass(frozen=True)
class LengthRule(Checked):
    """Rule of the length predictor. ``choice``: ``argmax`` or ``expectation``; ``draft_cost``: a drafted token in target passes.

    Examples
    --------
    >>> law = torch.tensor([[0.5, 0.0, 0.0, 0.5]])  # none or all of three tokens
    >>> [int(LengthRule(choice, draft_cost=0.1).decisions(law)) for choice in LENGTH_CHOICES]
    [0, 3]
    """

    choice: Annotated[str, one_of(*LENGTH_CHOICES)]
    draft_cost: NotNegative

    settled = None  # a length always depends on the probabilities

    def limits(self, decision: int, gamma: int) -> tuple[int, float | None]:
        """Return the most tokens that a decision allows, and no confidence, as nothing is soft."""
        return decision, None

    @property
    def argmax(self) -> "LengthRule":
        """The rule that drafts the most likely length."""
        return LengthRule(ARGMAX, self.draft_cost)

    def decisions(self, probabilities_BL: Tensor) -> Tensor:
        """Decide: tokens to draft [B] int64 of probabilities [B, γ + 1]; of equals the shortest."""
        if self.choice == ARGMAX:
            return probabilities_BL.argmax(dim=1)
        reached_BL = probabilities_BL.flip(1).cumsum(dim=1).flip(1)  # P(A >= j)
        tokens_BL = reached_BL.cumsum(dim=1)  # P(A >= 0) = 1 stands for the token the target adds
        lengths_L = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        return (tokens_BL / (1 + self.draft_cost * lengths_L)).argmax(dim=1)


@dataclass(frozen=True)
class HeadSetting(Checked):
    """Rules at captured sampling ``settings``: the head's ``calibration`` there, the best static lengths, and the best rules.

    What is retained of a branch that survived costs nothing any more: it has a length and a rule of its own. A rule of ``None``:
    the static length, as no rule pays. ``tried`` and ``tried_retention`` are the best rules, whether they pay or not.
    """

    settings: SamplingSettings
    calibration: Calibration
    static_gamma: Whole
    retained_gamma: Whole
    rule: Any
    retention: Any
    tried: Any
    tried_retention: Any

    def static(self, retains: bool) -> int:
        """Return the best static length for drafting, or for what is retained of a branch."""
        return self.retained_gamma if retains else self.static_gamma

    def of(self, retains: bool) -> Any:
        """Return the rule for drafting, or for what is retained of a branch."""
        return self.retention if retains else self.rule


@dataclass(frozen=True)
class ClassSetting(HeadSetting):
    """Setting whose rules decide on a class."""

    rule: DecisionRule | None
    retention: DecisionRule | None
    tried: DecisionRule
    tried_retention: DecisionRule


@dataclass(frozen=True)
class LengthSetting(HeadSetting):
    """Setting whose rules decide on a length."""

    rule: LengthRule | None
    retention: LengthRule | None
    tried: LengthRule
    tried_retention: LengthRule
