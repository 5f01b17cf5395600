"""Draft on while what the next tokens promise is worth what they cost.

    S_g          Π_{i<=g} P̂(token i is accepted | all before it were): the chain so far survives
    promise(m)   S_g b Σ_{k<m} f^k                    b = P̂(the next token is accepted), f of those after it
    go on        if promise(m) > ρ (C(g + m) - C(g)) for some m <= horizon
    needed_g     min_m ρ (C(g + m) - C(g)) / Σ_{k<m} f^k, which S_g b has to exceed: the same

C(n) is what a round of n drafted tokens takes, in rounds of none; ρ a rate, tokens per such round. The highest tokens per
time is that ρ at which E[tokens] - ρ E[time] is at most 0 (Dinkelbach, 1967), so that one number carries what all other rounds
are worth. Looking several tokens ahead matters where passes are priced in steps. Shape suffix: L lengths of a draft, from 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from predictors.config import Checked, Count, NotNegative, Positive, Probability, Whole
from predictors.sampling import SamplingSettings
from predictors.stopping.rule import StopCalibration

HORIZON = 5


@dataclass(frozen=True)
class SurvivalRule(Checked):
    """See the module's docstring."""

    rate: NotNegative  # ρ
    least: Count = 1  # tokens drafted before the model is asked
    follows: Probability = 0.8  # f
    horizon: Count = HORIZON  # most tokens ahead

    def at_pace(self, factor: float) -> "SurvivalRule":
        """The same at ``factor`` times its rate."""
        return replace(self, rate=self.rate * factor)

    def needed(self, cost_L: Sequence[float]) -> tuple[float, ...]:
        """What S_g b has to exceed for drafting to go on after 0, 1, … tokens [L]; after the last nothing does."""
        promised = [sum(self.follows**place for place in range(further)) for further in range(1, self.horizon + 1)]

        def least(drafted: int, here: float) -> float:
            ahead = zip(cost_L[drafted + 1 :], promised, strict=False)
            return min((self.rate * (cost - here) / worth for cost, worth in ahead), default=math.inf)

        return tuple(least(drafted, here) for drafted, here in enumerate(cost_L))


@dataclass(frozen=True)
class Priced(Checked):
    """What is best on a machine where a target pass takes as long as ``cost_ratio`` draft steps."""

    cost_ratio: Positive
    rule: SurvivalRule
    static_length: Whole


@dataclass(frozen=True)
class SurvivalSetting(Checked):
    """What is done at captured sampling ``settings``: follow ``rule`` where it ``pays``, else draft ``static_length`` tokens."""

    settings: SamplingSettings
    rule: SurvivalRule
    pays: bool
    static_length: Whole
    costs: tuple[Positive, ...]  # C of 0, 1, … tokens
    calibration: StopCalibration = field(default_factory=StopCalibration)  # of ``now``'s logit
    elsewhere: tuple[Priced, ...] = ()  # what is best at other prices

    @cached_property
    def needed(self) -> tuple[float, ...]:
        """`SurvivalRule.needed` at these costs."""
        return self.rule.needed(self.costs)

    def at_pace(self, factor: float) -> "SurvivalSetting":
        """The same where other rounds are worth ``factor`` times as much, on every machine."""
        elsewhere = tuple(replace(one, rule=one.rule.at_pace(factor)) for one in self.elsewhere)
        return replace(self, rule=self.rule.at_pace(factor), elsewhere=elsewhere)

    def priced(self, cost_ratio: float) -> tuple[SurvivalRule, int]:
        """Rule and static length on another machine: the rate between those of its neighbours in ln c, all else the nearer's.
        `ValueError` where the fit found none for other machines."""
        if not self.elsewhere:
            raise ValueError(
                f"{self.settings.name} has no rules for machines of other prices. Fit with cost_ratios, or load without reprice."
            )
        by_ratio = sorted(self.elsewhere, key=lambda one: one.cost_ratio)
        logs, log_ratio = np.log([one.cost_ratio for one in by_ratio]), math.log(cost_ratio)
        rate = np.interp(log_ratio, logs, [one.rule.rate for one in by_ratio])
        nearest = by_ratio[np.abs(logs - log_ratio).argmin()]
        return replace(nearest.rule, rate=float(rate)), nearest.static_length


@dataclass(frozen=True)
class SurvivalPrices:
    """What rules were chosen by: ``cost_ratio`` of a machine after ``context`` tokens, from the latency profile
    ``profile_hash``."""

    cost_ratio: float
    context: float
    profile_hash: str
