"""The explicit length predictor: a head over 0..γ says how many of the next γ drafted tokens will be accepted.

    n = rule(P(a | features))         draft exactly n tokens

SpecBranch compares H-RAD with it (Fig. 3, Table 19; after AdaEAGLE). The rule is the paper's argmax or the length of highest
expected value (`predictors.decision_rule`). With the ``paper`` features n is known at the root; with the ``extended`` ones at
the first draft law, whose pass is then paid even where n is 0. Drafting ends after the n-th token: no law is computed only to
stop. When the controller stands aside: `predictors.controllers.head`.
"""

from torch import Tensor

from predictors.controllers.head import HeadController, HeadSession
from predictors.decision_rule import LengthSetting
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw


class LengthSession(HeadSession):
    controller: "Length"

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        if self.rule is None or self.bypassed:
            return drawn.drafted >= self.setting.static(self.retains)
        length = self.decision
        return length is not None and drawn.drafted >= length

    def _most(self, decision: int) -> int:
        return decision

    def _stops(self, decision: int, law: NextLaw) -> bool | Tensor:
        return law.drafted >= decision


class Length(HeadController):
    """The controller of an exported bundle of kind ``length``."""

    kind = "length"
    setting_class = LengthSetting

    @property
    def num_classes(self) -> int:
        return self.spec.gamma + 1

    def start(self, settings: SamplingSettings) -> LengthSession:
        return LengthSession(self, settings)
