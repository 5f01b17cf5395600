"""Stop before the first token whose law is not confident: max_x q(x) < ε, q at temperature 1 (SpecBranch, Eq. 6; Kangaroo).

The test reads the law, never the drawn token's probability, so it is lossless at every temperature. At least ``min_tokens``
are drafted, as in the public code.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from predictors.config import Checked, Probability, Whole
from predictors.controllers.base import Configured, Session
from predictors.signals import NextLaw


@dataclass(frozen=True)
class ConfidenceConfig(Checked):
    """``epsilon`` in [0, 1]; ``min_tokens`` drafted before the first test."""

    epsilon: Probability = 0.4
    min_tokens: Whole = 1


class ConfidenceSession(Session):
    def __init__(self, config: ConfidenceConfig) -> None:
        self.config = config

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        return law.drafted >= self.config.min_tokens and law.confidence < self.config.epsilon


class Confidence(Configured):
    kind = "confidence"
    config_class, session_class = ConfidenceConfig, ConfidenceSession

    def with_epsilon(self, epsilon: float) -> "Confidence":
        return Confidence(replace(self.config, epsilon=epsilon))
