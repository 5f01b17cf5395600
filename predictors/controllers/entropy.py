"""AdaEDL: stop before the first token with a high-entropy law, with a threshold that follows the acceptance rate.

    stop iff  1 - sqrt(κ H(q)) < λ                              H in nats; κ = 0.2
    after a round with n_d drafted, n_a accepted, cap L:
        AR ← ½ AR + ½ n_a / n_d
        λ' = λ + step if AR < goal;  λ - step elif n_a ≠ L;  λ otherwise
        λ ← decay λ + (1 - decay) λ'                              (goal .9, step .01, decay .9, λ₀ .7, AR₀ .9)

Source: Agrawal et al. 2024 and the update of Draft&Verify's family. H is the entropy of the processed law the token is
drawn from; of the temperature-1 law when decoding is greedy. At least one token is drafted each round.
"""

from dataclasses import dataclass

from torch import Tensor

from predictors.config import Checked, Positive
from predictors.controllers.base import Configured, Session
from predictors.rounds import RoundRecord
from predictors.signals import NextLaw, Root


@dataclass(frozen=True)
class EntropyConfig(Checked):
    """κ, initial threshold λ₀ and acceptance rate AR₀, and the update's constants (module docstring)."""

    kappa: Positive = 0.2
    threshold: float = 0.7
    acceptance_rate: float = 0.9
    goal: float = 0.9
    step: float = 0.01
    decay: float = 0.9


class EntropySession(Session):
    def __init__(self, config: EntropyConfig) -> None:
        self.config = config
        self.threshold = config.threshold
        self.acceptance_rate = config.acceptance_rate
        self.cap = 0

    def plan(self, root: Root) -> None:
        self.cap = root.cap

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if law.drafted == 0:
            return False
        entropy = law.entropy if law.settings.greedy else law.law_entropy
        return 1 - (self.config.kappa * entropy).sqrt() < self.threshold

    def end_round(self, outcome: RoundRecord) -> None:
        if outcome.submitted == 0:
            return
        config = self.config
        self.acceptance_rate = 0.5 * self.acceptance_rate + 0.5 * outcome.accepted_in_sequence / outcome.submitted
        moved = self.threshold
        if self.acceptance_rate < config.goal:
            moved += config.step
        elif outcome.accepted_in_sequence != self.cap:
            moved -= config.step
        self.threshold = config.decay * self.threshold + (1 - config.decay) * moved


class Entropy(Configured):
    kind = "entropy"
    config_class, session_class = EntropyConfig, EntropySession
