"""The field's rules without a network, each its settings: lengths and thresholds, fixed or moved by the request's own rounds.

What is tested before a token is drawn is its distribution, never its own probability; a token that stops drafting by its own is
kept and verified. So all are lossless at every temperature.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from torch import Tensor

from predictors.bundle import Bundle
from predictors.config import (
    Checked,
    Count,
    NotNegative,
    Positive,
    Probability,
    Share,
    Whole,
    ascending,
    not_empty,
    parse_config,
)
from predictors.controllers.base import Controller, Session
from predictors.latency.profile import LatencyProfile
from predictors.rounds import RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root


class Configured(Checked, Controller, Session):
    """A controller that is its settings, which a subclass has as fields. Sessions are copies, whose settings may move."""

    profile_hash: str | None = None  # of the latency profile by which an exported bundle's settings were chosen

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        return parse_config(cls, values, f"controller {cls.kind}")

    def start(self, settings: SamplingSettings) -> Self:
        session = copy.copy(self)
        session.begin()
        return session

    def begin(self) -> None:
        """Set what a request has besides the settings."""


@dataclass(eq=False)
class Fixed(Configured):
    """Draft ``gamma`` tokens a round (``None``: the drafter's own): the static baseline of every controller."""

    gamma: Whole | None = None
    kind = "fixed"

    def plan(self, root: Root) -> int | None:
        return self.gamma

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        controller = super().from_bundle(bundle)
        controller.profile_hash = bundle.card.get("lineage", {}).get("profile_hash")
        return controller

    def doubt(self, profile: LatencyProfile) -> str | None:
        if self.profile_hash in (None, profile.profile_hash):
            return None
        return (
            "these settings were chosen by another latency profile: on this machine others may be faster (dvc repro)."
        )

    def repriced(self, profile: LatencyProfile) -> Self:
        """Refuse: settings cannot be chosen anew, as the traces that they were chosen from are not in the bundle."""
        raise ValueError(
            "these settings were chosen by a latency profile when they were exported. Run the stage that exports them again."
        )


@dataclass(eq=False)
class Confidence(Configured):
    """Stop before the first token whose distribution is not confident, q at temperature 1 (SpecBranch, Eq. 6; Kangaroo).

        stop iff  max_x q_i(x) < ε                  with ``product``: Π_{j<=i} max_x q_j(x) < ε, so that long drafts end, too
        at least ``min_tokens``, at most ``cap``    as in the public code (assistant_confidence_threshold, num_assistant_tokens)

    Without a ``cap`` the drafter's holds. In a tree the product goes on with the most confident distribution of a level.
    """

    epsilon: Probability = 0.4
    min_tokens: Whole = 1
    cap: Count | None = None
    product: bool = False
    kind = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.follows_one_draft = self.product

    def with_epsilon(self, epsilon: float) -> "Confidence":
        return replace(self, epsilon=epsilon)

    def begin(self) -> None:
        self._product: float | Tensor = 1.0

    def plan(self, root: Root) -> int | None:
        self._product = 1.0
        return self.cap

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if self.product:
            self._product = self._product * law.confidence
        elif law.drafted >= self.min_tokens:
            return law.confidence < self.epsilon
        return law.drafted >= self.min_tokens and self._product < self.epsilon

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        if not self.product:
            return super().stops_before(laws)
        return [bool(self.stop_before(max(laws, key=lambda law: float(law.confidence))))] * len(laws)


@dataclass(eq=False)
class Entropy(Configured):
    """AdaEDL: stop before the first token whose distribution has a high entropy, by a threshold that follows acceptance.

        stop iff  1 - sqrt(κ H(q)) < λ                              H in nats
        after a round with n_d drafted, n_a accepted, cap L:
            AR ← ½ AR + ½ n_a / n_d
            λ' = λ + step if AR < goal;  λ - step elif n_a ≠ L;  λ otherwise
            λ ← decay λ + (1 - decay) λ'                              λ at first ``threshold``, AR ``acceptance_rate``

    Source: Agrawal et al. 2024 and the update of Draft&Verify's family. H is the entropy of the processed distribution that the
    token is drawn from; of the temperature-1 one when decoding is greedy. At least one token is drafted each round.
    """

    kappa: Positive = 0.2
    threshold: float = 0.7
    acceptance_rate: float = 0.9
    goal: float = 0.9
    step: float = 0.01
    decay: float = 0.9
    kind = "entropy"

    def begin(self) -> None:
        self._cap = 0

    def plan(self, root: Root) -> None:
        self._cap = root.cap

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if law.drafted == 0:
            return False
        entropy = law.entropy if law.settings.read_off else law.law_entropy
        return 1 - (self.kappa * entropy).sqrt() < self.threshold

    def end_round(self, outcome: RoundRecord) -> None:
        if outcome.submitted == 0:
            return
        self.acceptance_rate = 0.5 * self.acceptance_rate + 0.5 * outcome.accepted_in_sequence / outcome.submitted
        moved = self.threshold
        if self.acceptance_rate < self.goal:
            moved += self.step
        elif outcome.accepted_in_sequence != self._cap:
            moved -= self.step
        self.threshold = self.decay * self.threshold + (1 - self.decay) * moved


@dataclass(eq=False)
class ROC(Configured):
    """Hugging Face's dynamic assisted generation: stop after a token that is unlikely, with a threshold learned from outcomes.

        stop after x iff q(x) < threshold                 q: the processed distribution; of temperature 1 when decoding is greedy
        after a round, tested tokens add pairs (q(x), accepted); with more than ``min_pairs``, and both outcomes among them,
        threshold = argmin_t FPR(t) + miss_cost FNR(t)    over the points of the ROC curve; of equals the highest

    A round whose tree branches adds no pairs. Source: transformers' ``ConfidenceCriteria`` and
    ``AssistedCandidateGenerator.update_candidate_strategy``; specification of drafting, section 7.4.
    """

    threshold: Probability = 0.4
    miss_cost: Positive = 3.0
    min_pairs: int = 5
    kind = "roc"
    follows_one_draft = True

    def begin(self) -> None:
        self.scores: list[float] = []  # of all tested tokens
        self.accepted: list[bool] = []
        self.drawn: list[tuple[int, Tensor]] = []  # of this round: depth and score

    def plan(self, root: Root) -> None:
        self.drawn = []

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        score = drawn.unit_probability if drawn.law.settings.read_off else drawn.probability
        self.drawn.append((drawn.drafted, score))
        return score < self.threshold

    def end_round(self, outcome: RoundRecord) -> None:
        if [depth for depth, _ in self.drawn] != [*range(1, outcome.submitted + 1)]:
            return
        accepted = outcome.accepted_in_sequence
        tested = min(accepted + 1, outcome.submitted)
        self.scores += [float(score) for _, score in self.drawn[:tested]]
        self.accepted += [place < accepted for place in range(tested)]
        if len(self.scores) > self.min_pairs and 0 < sum(self.accepted) < len(self.accepted):
            self.threshold = best_threshold(self.scores, self.accepted, self.miss_cost)


def best_threshold(scores: Sequence[float], accepted: Sequence[bool], miss_cost: float) -> float:
    """Find the threshold of least FPR + ``miss_cost`` · FNR, where a score of at least the threshold predicts acceptance;
    infinity predicts none."""
    order = np.argsort(scores)[::-1]
    values, positive = np.array(scores)[order], np.array(accepted)[order]
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True))  # equal scores share a threshold
    rejected, kept = np.cumsum(~positive)[ends], np.cumsum(positive)[ends]
    costs = np.append(0.0, rejected / rejected[-1]) + miss_cost * np.append(1.0, 1 - kept / kept[-1])
    return float(np.append(np.inf, values[ends])[costs.argmin()])


@dataclass(eq=False)
class EMA(Configured):
    """A moving average of accepted tokens chooses among draft lengths (as adaptive draft lengths of serving engines do).

        a ← decay a + (1 - decay) n_a                  n_a: tokens accepted in a row in the round that ended
        length = the shortest tier >= a + reach        the longest tier where none is long enough

    A round that accepted all of a short draft shows that more was possible, hence the ``reach``; a starts one below the middle
    tier. Known at the root.
    """

    tiers: Annotated[tuple[Count, ...], not_empty, ascending] = (1, 2, 4, 8)
    decay: Share = 0.8
    reach: NotNegative = 1.0
    kind = "ema"

    def begin(self) -> None:
        self.average = max(self.tiers[len(self.tiers) // 2] - self.reach, 0.0)

    def plan(self, root: Root) -> int:
        enough = [tier for tier in self.tiers if tier >= self.average + self.reach]
        return enough[0] if enough else self.tiers[-1]

    def end_round(self, outcome: RoundRecord) -> None:
        if outcome.submitted:
            self.average = self.decay * self.average + (1 - self.decay) * outcome.accepted_in_sequence


@dataclass(eq=False)
class Online(Configured):
    """Estimate of acceptance that is refitted while serving, of the feature of vLLM's (pull request 52228): draft on while the
    next token is worth its price. Theirs drafts to the full depth, and chooses how much of all requests' drafts is verified.

    P_i = σ(a + b logit max_x q_i(x))              token i is accepted if all before it are
    go on after token i if  S_i P_i > ρ cost       S_i = Π_{j<=i} P_j; P_i also stands for the next token's, not drafted yet
    a, b ← one gradient step of ``step`` on the log-likelihood of every tested token; at first 0 and ``slope``
    ρ ← decay ρ + (1 - decay) emitted / (1 + cost drafted)                  cost: a draft step in target passes

    Without steps it is DSpark's schedule for one request: confidence at a temperature of 1 / ``slope``, where theirs has one for
    every position (Cheng et al. 2026).
    """

    cost: Positive = 0.1
    slope: Positive = 1.0
    step: NotNegative = 0.05
    decay: Share = 0.9
    kind = "online"

    def begin(self) -> None:
        self.intercept, self.weight, self.rate = 0.0, self.slope, 1.0

    def plan(self, root: Root) -> int | None:
        self.logits: list[float] = []
        self.survival = 1.0
        return None

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        confidence = min(max(float(drawn.law.confidence), 1e-6), 1 - 1e-6)
        self.logits.append(math.log(confidence / (1 - confidence)))
        chance = self._chance(self.logits[-1])
        self.survival *= chance
        return self.survival * chance <= self.rate * self.cost

    def end_round(self, outcome: RoundRecord) -> None:
        accepted = outcome.accepted_in_sequence
        for place, logit in enumerate(self.logits[: accepted + 1]):
            error = self.step * ((place < accepted) - self._chance(logit))
            self.intercept, self.weight = self.intercept + error, self.weight + error * logit
        now = outcome.emitted / (1 + self.cost * outcome.submitted)
        self.rate = self.decay * self.rate + (1 - self.decay) * now

    def _chance(self, logit: float) -> float:
        return 1 / (1 + math.exp(-min(max(self.intercept + self.weight * logit, -30.0), 30.0)))
