"""Hugging Face's dynamic assisted generation: stop after a token that is unlikely, with a threshold learned from outcomes.

    stop after x iff q(x) < threshold                     q: the processed law; of temperature 1 when decoding is greedy
    after a round, tested tokens add pairs (q(x), accepted); with more than 5 of them, and both outcomes among them,
    threshold = argmin_t FPR(t) + 3 FNR(t)                over the points of the ROC curve; of equals the highest

The token that stops drafting is kept and verified: lossless. A round whose tree branches adds no pairs. Source: transformers'
``ConfidenceCriteria`` and ``AssistedCandidateGenerator.update_candidate_strategy``; specification of drafting, section 7.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from predictors.config import Checked, Positive, Probability
from predictors.controllers.base import Configured, Session
from predictors.rounds import RoundRecord
from predictors.signals import DrawnToken, Root


@dataclass(frozen=True)
class ROCConfig(Checked):
    """The first ``threshold``, how much a false negative costs, and the pairs that must be exceeded before it moves."""

    threshold: Probability = 0.4
    miss_cost: Positive = 3.0
    min_pairs: int = 5


class ROCSession(Session):
    def __init__(self, config: ROCConfig) -> None:
        self.config = config
        self.threshold = config.threshold
        self.scores: list[float] = []  # of all tested tokens
        self.accepted: list[bool] = []
        self.drawn: list[tuple[int, Tensor]] = []  # of this round: depth and score

    def plan(self, root: Root) -> None:
        self.drawn = []

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        score = drawn.unit_probability if drawn.law.settings.greedy else drawn.probability
        self.drawn.append((drawn.drafted, score))
        return score < self.threshold

    def end_round(self, outcome: RoundRecord) -> None:
        if [depth for depth, _ in self.drawn] != [*range(1, outcome.submitted + 1)]:
            return
        accepted = outcome.accepted_in_sequence
        tested = min(accepted + 1, outcome.submitted)
        self.scores += [float(score) for _, score in self.drawn[:tested]]
        self.accepted += [place < accepted for place in range(tested)]
        if len(self.scores) > self.config.min_pairs and 0 < sum(self.accepted) < len(self.accepted):
            self.threshold = best_threshold(self.scores, self.accepted, self.config.miss_cost)


def best_threshold(scores: Sequence[float], accepted: Sequence[bool], miss_cost: float) -> float:
    """argmin over thresholds of FPR + ``miss_cost`` · FNR, where a score of at least the threshold predicts acceptance; infinity
    predicts none."""
    order = np.argsort(scores)[::-1]
    values, positive = np.array(scores)[order], np.array(accepted)[order]
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True))  # equal scores share a threshold
    rejected, kept = np.cumsum(~positive)[ends], np.cumsum(positive)[ends]
    costs = np.append(0.0, rejected / rejected[-1]) + miss_cost * np.append(1.0, 1 - kept / kept[-1])
    return float(np.append(np.inf, values[ends])[costs.argmin()])


class ROC(Configured):
    kind = "roc"
    config_class, session_class = ROCConfig, ROCSession
    follows_one_draft = True
