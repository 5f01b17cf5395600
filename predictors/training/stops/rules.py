"""Which rule a stop model is served with: chosen and scored by replayed tokens per second, at every sampling setting.

    chosen    argmax over thresholds, products, kept tokens and least lengths, on validation texts (`training.rule_choice`)
    served    where its gain out of fold is surely one; elsewhere the best static length is drafted, and nothing asked
    policies  static, confidence, the paper's rule, the model's, forced, asked for nothing, and the oracle's

All on the same texts with the same luck (`predictors.replay.grid`); one price table pays passes, readings and queries.
Shape suffixes: R rules, X readings, S starts, G slots or positions of a chain.
"""

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from predictors.latency.profile import LatencyProfile
from predictors.replay.grid import Drafts, Starts, Totals, decoded
from predictors.replay.policies import confidence, static, stopping
from predictors.sampling import SamplingSettings
from predictors.stopping.rule import StopRule
from predictors.training.rule_choice import RuleChoice, best_of, oracle, static_length, worth

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
LEAST = (0, 1, 2, 3, 4)
RULES = tuple(StopRule(*values) for values in product(THRESHOLDS, (False, True), (False, True), LEAST))
EPSILONS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6)
PAPERS = {"specdecpp": StopRule(0.7, product=True, keeps=True)}  # 1 - h
MCSD = StopRule(0.4, keeps=True)  # β


@dataclass(frozen=True)
class Played:
    """A model of ``inputs`` on texts at one sampling setting: its chances, where it would stand aside as its features lie too
    ``far``, and seconds of a ``question``."""

    starts: Starts
    chances_XSG: np.ndarray
    far_XSG: np.ndarray
    inputs: str
    question: float

    def static(self, length: int) -> Totals:
        return decoded(self.starts, static(self.starts, length))

    def confidence(self, epsilon: float) -> Totals:
        return decoded(self.starts, confidence(self.starts, self.starts.column("confidence"), epsilon))

    def stopped(self, rule: StopRule, static_length: int, question: float | None = None) -> Totals:
        """What ``rule`` makes of the model; ``question``: seconds of one, if not as measured."""
        drafts: Drafts = stopping(self.starts, self.chances_XSG, rule, self.inputs, static_length, self.far_XSG)
        return decoded(self.starts, drafts, self.question if question is None else question)


@dataclass(frozen=True)
class Chosen:
    """What is served at ``settings``: ``rule``, or the best ``static_length`` where it never asks. ``tried`` is the best rule
    that asks, with its ``choice``; ``epsilon`` is the confidence rule's."""

    settings: SamplingSettings
    rule: StopRule
    static_length: int
    tried: StopRule
    choice: RuleChoice
    epsilon: float


def choose(train: Starts, validation: Played, settings: SamplingSettings, folds: int, seed: int) -> Chosen:
    """The static length on training and validation texts, the rules on validation texts."""
    length = static_length([train, validation.starts])
    always, document_X = validation.static(length), validation.starts.document_X
    play = partial(validation.stopped, static_length=length)
    tried, choice = best_of(RULES, play, always, document_X, folds, seed)
    epsilon = max(EPSILONS, key=lambda epsilon: validation.confidence(epsilon).rate)
    return Chosen(settings, tried if choice.pays else StopRule(0.0), length, tried, choice, epsilon)


def evaluate(test: Played, chosen: Chosen, paper: StopRule, profile: LatencyProfile) -> dict[str, Any]:
    """Every policy's tokens per second on texts that chose nothing."""
    length = chosen.static_length
    always = test.static(length)
    policies = {
        "static": always,
        "confidence": test.confidence(chosen.epsilon),
        "paper": test.stopped(paper, length),
        "model": test.stopped(chosen.rule, length),
        "asked": test.stopped(chosen.tried, length),
        "asked for nothing": test.stopped(chosen.tried, length, question=0.0),
    }
    made = {name: worth(totals, always, test.starts.document_X) for name, totals in policies.items()}
    made["perfect"] = worth(oracle(test.starts, profile), always, test.starts.document_X)
    return {"static_length": length, "epsilon": chosen.epsilon, "policies": made}
