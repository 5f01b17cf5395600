"""What a stop rule is worth: tokens per second, replayed on rounds whose drafts were not cut short.

    tokens  = min(accepted, m) + 1
    seconds = round(m) + (passes - m) draft + asked question      m submitted tokens; passes with their laws; questions

A rule that keeps the token about to be drawn submits it; one that does not has paid a pass for the law that it stopped at. The
rounds are those that the collected decoder visited: a rule that stops elsewhere visits others, which only decoding sees. Of a
sampling setting Σ tokens / Σ seconds is long-run throughput. The perfect rule knows what will be accepted and, of 0..γ tokens,
submits those worth most, argmax_m tokens - ρ seconds with ρ its own throughput.

Shape suffixes: R rounds, G places (γ_max), M lengths 0..γ_max, S settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictors.latency.actions import undisturbed
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import Shape, round_latency
from predictors.sampling import SamplingSettings
from predictors.stopping.features import BEHIND
from predictors.stopping.rule import StopRule
from predictors.training.token_table import Rounds
from predictors.training.trees.evaluation import oracle_places


@dataclass(frozen=True)
class StopCosts:
    """Seconds: of rounds of 0..γ_max submitted tokens by sampling setting [S, M], of a draft pass and its law [S], and of a
    ``question``."""

    rounds_SM: np.ndarray
    draft_S: np.ndarray
    question: float


@dataclass(frozen=True)
class Outcome:
    """Every round's emitted ``tokens`` [R], ``seconds`` [R] and ``submitted`` tokens [R]."""

    tokens: np.ndarray
    seconds: np.ndarray
    submitted: np.ndarray

    @property
    def throughput(self) -> float:
        """Tokens per second."""
        return float(self.tokens.sum() / self.seconds.sum())


def stop_costs(
    profile: LatencyProfile, settings: Sequence[SamplingSettings], gamma: int, context: float, features: int
) -> StopCosts:
    """Costs behind ``context`` tokens on this machine, with a model that reads so many ``features``."""
    quiet = undisturbed(profile)
    rounds = [
        [round_latency(quiet, Shape.chain(length), context, not made.greedy).seconds for length in range(gamma + 1)]
        for made in settings
    ]
    step = quiet.latency("draft", rows=1, context=context).seconds
    laws = [quiet.latency("chain_drawing", drafted=1, sampled=int(not made.greedy)).seconds for made in settings]
    return StopCosts(np.array(rounds), step + np.array(laws), quiet.latency("stopping", features=features).seconds)


@dataclass(frozen=True)
class StopReplay:
    """``rounds`` drafted to γ_max, and what they cost."""

    rounds: Rounds
    costs: StopCosts

    def static(self, length: int) -> Outcome:
        """Always ``length`` tokens."""
        return self._outcome(np.full(len(self.rounds.accepted_R), length))

    def stopped(self, chances_RG: np.ndarray, rule: StopRule, inputs: str) -> Outcome:
        """What ``rule`` makes of a model's chances of every drafted token."""
        first_R, passes_R = _ends(scores(chances_RG, rule, inputs), rule.threshold, rule.min_tokens)
        asked_at = [rule.asks_at(place) and (inputs != BEHIND or place > 0) for place in range(chances_RG.shape[1])]
        asked_R = np.append(0, np.cumsum(asked_at))[passes_R]
        return self._outcome(passes_R if rule.keeps else first_R, passes_R, asked_R)

    def confidence(self, largest_RG: np.ndarray, epsilon: float) -> Outcome:
        """Draft while the draft's law is confident, at least one token; reading a law is no question."""
        return self._outcome(*_ends(largest_RG, epsilon, 1))

    def perfect(self) -> Outcome:
        """Submits what is worth most, known beforehand: of one setting's rounds no static length is worth more, at whatever
        costs, as every one of them was open to it in every round."""
        lengths_M = np.arange(self.costs.rounds_SM.shape[1])
        tokens_RM = np.minimum(self.rounds.accepted_R[:, None], lengths_M) + 1.0
        return self._outcome(oracle_places(tokens_RM, self.costs.rounds_SM[self.rounds.setting_R]))

    def _outcome(
        self, submitted_R: np.ndarray, passes_R: np.ndarray | None = None, asked_R: np.ndarray | int = 0
    ) -> Outcome:
        costs = self.costs
        seconds_R = costs.rounds_SM[self.rounds.setting_R, submitted_R] + costs.question * np.asarray(asked_R)
        if passes_R is not None:
            seconds_R = seconds_R + costs.draft_S[self.rounds.setting_R] * (passes_R - submitted_R)
        return Outcome(np.minimum(self.rounds.accepted_R, submitted_R) + 1.0, seconds_R, submitted_R)


def _ends(scores_RG: np.ndarray, threshold: float, min_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens lie in front of the first low score [R], all if none is, and the draft's passes [R] up to its law."""
    low_RG = scores_RG < threshold
    low_RG[:, :min_tokens] = False
    gamma = low_RG.shape[1]
    first_R = np.where(low_RG.any(axis=1), low_RG.argmax(axis=1), gamma)
    return first_R, np.minimum(first_R + 1, gamma)


def scores(chances_RG: np.ndarray, rule: StopRule, inputs: str) -> np.ndarray:
    """The score at which each token would be drawn: its own, or the one before it of a model that sees tokens."""
    scores_RG = np.cumprod(chances_RG, axis=1) if rule.product else chances_RG.copy()
    if inputs == BEHIND:
        scores_RG = np.concatenate([np.ones((len(scores_RG), 1)), scores_RG[:, :-1]], axis=1)
    return scores_RG
