"""Probing a policy: every other round it decides, and in the rounds between everything is drafted and nothing trimmed.

A label says how many of γ tokens the target accepts, so all γ must be tested there; but what a served controller has behind it
are its own rounds. Each probed round follows a served one: its root's past is the policy's, its label is whole.
"""

from torch import Tensor

from predictors.controllers import Controller, Session
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root


class ProbeSession(Session):
    """``bypassed`` marks the probed rounds."""

    def __init__(self, policy: Session) -> None:
        self.policy = policy
        self.bypassed = True

    def plan(self, root: Root) -> int | None:
        self.bypassed = not self.bypassed
        return None if self.bypassed else self.policy.plan(root)

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        return False if self.bypassed else self.policy.stop_before(law)

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        return False if self.bypassed else self.policy.stop_after(drawn)

    def branch_count(self, law: NextLaw) -> int | None:
        return self.policy.branch_count(law)

    def end_round(self, outcome: RoundRecord) -> None:
        self.policy.end_round(outcome)


class Probe(Controller):
    """``policy`` with every other round probed, from the second on."""

    kind = "probe"

    def __init__(self, policy: Controller) -> None:
        self.policy = policy
        self.layers = policy.layers
        self.gamma = policy.gamma
        self.contract = policy.contract

    def start(self, settings: SamplingSettings) -> ProbeSession:
        return ProbeSession(self.policy.start(settings))
