"""H-RAD: a three-class head says none, some or all of the next γ drafted tokens will be accepted (SpecBranch, section 4).

    s = rule(P(c | features))         s = 0: draft nothing      s = 2: draft all γ
                                      s = 1: draft while max_x q(x) >= ε (at least one token)

The rule is the paper's argmax or chosen thresholds (`predictors.decision_rule`). When the class is known, and when the
controller stands aside: `predictors.controllers.head`.
"""

from dataclasses import replace

from torch import Tensor

from predictors.controllers.head import HeadController, HeadSession
from predictors.decision_rule import ALL, NONE, ClassSetting, DecisionRule
from predictors.network import CLASSES
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw

RULES = ("rule", "retention", "tried", "tried_retention")  # of a setting


class HRADSession(HeadSession):
    controller: "HRAD"

    def _most(self, decision: int) -> int:
        return 0 if decision == NONE else self.spec.gamma

    def _stops(self, decision: int, law: NextLaw) -> bool | Tensor:
        if decision != ALL and decision != NONE:
            return law.drafted >= 1 and law.confidence < self.rule.epsilon
        return decision == NONE


class HRAD(HeadController):
    """The controller of an exported bundle of kind ``hrad``."""

    kind = "hrad"
    setting_class = ClassSetting

    @property
    def num_classes(self) -> int:
        return len(CLASSES)

    def with_epsilon(self, epsilon: float) -> "HRAD":
        def soft(rule: DecisionRule | None) -> DecisionRule | None:
            return rule and replace(rule, epsilon=epsilon)

        return self.with_settings(
            replace(made, **{name: soft(getattr(made, name)) for name in RULES}) for made in self.settings
        )

    def start(self, settings: SamplingSettings) -> HRADSession:
        return HRADSession(self, settings)
