"""Stop before the first token whose distribution is not confident, q at temperature 1 (SpecBranch, Eq. 6; Kangaroo).

    stop iff  max_x q_i(x) < ε                  with ``product``: Π_{j<=i} max_x q_j(x) < ε, so that long drafts end, too
    at least ``min_tokens``, at most ``cap``    as in the public code (assistant_confidence_threshold, num_assistant_tokens)

The test reads distributions, never the drawn token's probability, so it is lossless at every temperature. In a tree the product
goes on with the most confident distribution of a level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from predictors.config import Checked, Count, Probability, Whole
from predictors.controllers.base import Configured, Session
from predictors.signals import NextLaw, Root


@dataclass(frozen=True)
class ConfidenceConfig(Checked):
    """``epsilon`` in [0, 1]; ``min_tokens`` drafted before the first test; ``cap``: most tokens, ``None`` as the drafter's."""

    epsilon: Probability = 0.4
    min_tokens: Whole = 1
    cap: Count | None = None
    product: bool = False


class ConfidenceSession(Session):
    def __init__(self, config: ConfidenceConfig) -> None:
        self.config = config
        self._product: float | Tensor = 1.0

    def plan(self, root: Root) -> int | None:
        self._product = 1.0
        return self.config.cap

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        config = self.config
        if config.product:
            self._product = self._product * law.confidence
        elif law.drafted >= config.min_tokens:
            return law.confidence < config.epsilon
        return law.drafted >= config.min_tokens and self._product < config.epsilon

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        if not self.config.product:
            return super().stops_before(laws)
        return [bool(self.stop_before(max(laws, key=lambda law: float(law.confidence))))] * len(laws)


class Confidence(Configured):
    kind = "confidence"
    config_class, session_class = ConfidenceConfig, ConfidenceSession

    def __init__(self, config: ConfidenceConfig) -> None:
        super().__init__(config)
        self.follows_one_draft = config.product

    def with_epsilon(self, epsilon: float) -> "Confidence":
        return Confidence(replace(self.config, epsilon=epsilon))
