"""Controller ``survival`` without its loop: what it reads of a chain as it grows, its network and its rule.

    token g       logs of the largest probability and of the drawn token's, at temperature 1
    so far        sums of the logs, and the token before
    lookup        length of the root's match, grown by every drafted token that it would have proposed; where they parted
    past          whether the last round ended by a rejection; luck <- DECAY luck + (1 - DECAY) [accepted] over tested tokens

    now           P(this token is accepted | all before it were),     next    P(the one after it is accepted | so was this one)
    logits        W2 relu(W1 (x - μ) / σ + b1) + b2

    S_g           Π_{i<=g} P̂(token i is accepted | all before it were): the chain so far survives
    promise(m)    S_g b Σ_{k<m} f^k                    b = P̂(the next token is accepted), f of those after it
    go on         if promise(m) > ρ (C(g + m) - C(g)) for some m <= horizon
    needed_g      min_m ρ (C(g + m) - C(g)) / Σ_{k<m} f^k, which S_g b has to exceed: the same

C(n) is what a round of n drafted tokens takes, in rounds of none; ρ a rate, tokens per such round: the highest is that at which
E[tokens] - ρ E[time] is at most 0 (Dinkelbach, 1967). All of it holds for numbers and for arrays of chains. Source: the stop
models of MCSD and SpecDec++ (specification of drafting, sections 5.5 and 7.5), over inputs of our own. Shape suffixes: ... any
drafts, F features, H hidden units, L lengths of a draft, from 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from predictors.config import Checked, Count, NotNegative, Positive, Probability, Whole
from predictors.network import SKETCH, OnHost, TwoLayers, loaded
from predictors.sampling import SamplingSettings
from predictors.signals import LEAST_LOG, TokenNumbers
from predictors.stopping import StopCalibration

TOKEN = ("log_top", "log_own", "sum_log_top", "sum_log_own", "previous_log_top")
LOOKUP = ("agrees", "agreed_length", "parted_length", "parted")
ROOT = ("found", "match", "rejected", "luck", "greedy")
# `TOKEN` stands first: the squared distance is of those alone, as all others are bounded.
SCALARS = (*TOKEN, "position", "log_position", *LOOKUP, *ROOT)
REJECTED, LUCK = SCALARS.index("rejected"), SCALARS.index("luck")
DECAY = 0.8
FIRST_LUCK = 0.7  # before any token was tested
LOG_OF = np.log1p(np.arange(2048))  # of small counts
LOGS = LOG_OF.tolist()
HORIZON = 5
UNCHANGED = StopCalibration()


class Course:
    """Features of a draft as it grows from a root where a match of ``match`` tokens was found (0: none), or of arrays of drafts;
    ``rejected`` and ``luck`` are of past rounds, ``greedy``: at temperature 0."""

    def __init__(self, match: Any, rejected: Any, luck: Any, greedy: float) -> None:
        self._logs: Any = LOGS if isinstance(match, int) else LOG_OF
        self._agrees: Any = 1.0 * (match > 0)
        self._root = (self._agrees, self._logs[match], rejected, luck, greedy)
        self._match = match
        self._drafted = 0
        self._sums: tuple[Any, Any] = (0.0, 0.0)
        self._previous: Any = 0.0

    def add(self, token: TokenNumbers, proposed: Any) -> list[Any]:
        """Return the features after one more ``token``; ``proposed``: whether it is the lookup's next one."""
        found, log_match, *past = self._root
        position = self._drafted
        self._agrees = agrees = self._agrees * proposed
        parted = found - agrees
        sum_top, sum_own = self._sums[0] + token.log_top, self._sums[1] + token.log_own
        features = [*token, sum_top, sum_own, self._previous, position, LOGS[position]]
        features += [agrees, agrees * self._logs[self._match + position + 1], parted * log_match, parted]
        self._drafted, self._sums, self._previous = position + 1, (sum_top, sum_own), token.log_top
        return [*features, found, log_match, *past]


def luck_after(luck: Any, accepted: Any, rejected: Any) -> Any:
    """Update ``luck`` by a round of so many ``accepted`` tokens, the next one ``rejected`` or not tested."""
    kept = DECAY**accepted
    return (luck * kept + 1 - kept) * (1 - (1 - DECAY) * rejected)


def numbers_of(confidence: Any, own: Any) -> TokenNumbers:
    """Turn probabilities, recorded ones among them, into the logs of `TokenNumbers`."""
    return TokenNumbers(*(np.log(np.maximum(one, math.exp(LEAST_LOG))) for one in (confidence, own)))


class SurvivalNetwork(TwoLayers):
    """Network of ``survival``: logits [B, 2] of `now` and `next` from raw features [B, F]."""

    def __init__(self, hidden: int) -> None:
        super().__init__(len(SCALARS), hidden, 2)


class Answers(NamedTuple):
    """Outputs of the survival network: logits of `now` and `next`, the token's mean squared standardised coordinate (1 on
    average over the training rows), and the first of these coordinates [..., SKETCH]."""

    now: Any
    following: Any
    distance: Any
    sketch: Any


class Answering(OnHost):
    """A trained network, over arrays of drafts or about one draft."""

    def __call__(self, features: np.ndarray) -> Answers:
        """Compute outputs from raw features [..., F]."""
        logits, standard = self.rows(features)
        token = standard[..., : len(TOKEN)]
        distance = np.einsum("...f,...f->...", token, token) / len(TOKEN)
        return Answers(logits[..., 0], logits[..., 1], distance, token[..., :SKETCH])

    def of_one(self, features: Sequence[float]) -> Answers:
        """Compute outputs of one draft's features [F], in plain numbers."""
        (now, following), standard = self.row(features)
        token = standard[: len(TOKEN)]
        return Answers(now, following, sum(map(mul, token, token)) / len(TOKEN), tuple(token[:SKETCH]))


def build_survival_network(tensors: Mapping[str, Tensor], source: str) -> SurvivalNetwork:
    """Build the network with ``tensors`` as weights, in evaluation mode."""
    return loaded(
        lambda: SurvivalNetwork(len(tensors["head.0.bias"])), tensors, f"{source}: the tensors are no survival network"
    )


@dataclass(frozen=True)
class SurvivalRule(Checked):
    """Rule of ``survival``: draft on while the module's ``promise`` exceeds its price."""

    rate: NotNegative  # ρ
    least: Count = 1  # tokens drafted before the model is run
    follows: Probability = 0.8  # f
    horizon: Count = HORIZON  # most tokens ahead

    def at_pace(self, factor: float) -> "SurvivalRule":
        """Multiply the rate by ``factor``."""
        return replace(self, rate=self.rate * factor)

    def needed(self, cost_L: Sequence[float]) -> tuple[float, ...]:
        """Compute needed_g [L], which S_g b has to exceed to draft on after 0, 1, … tokens; after the last it is infinite."""
        promised = [sum(self.follows**place for place in range(further)) for further in range(1, self.horizon + 1)]

        def least(drafted: int, here: float) -> float:
            ahead = zip(cost_L[drafted + 1 :], promised, strict=False)
            return min((self.rate * (cost - here) / worth for cost, worth in ahead), default=math.inf)

        return tuple(least(drafted, here) for drafted, here in enumerate(cost_L))


@dataclass(frozen=True)
class Priced(Checked):
    """Best rule and static length on a machine where a target pass takes as long as ``cost_ratio`` draft steps."""

    cost_ratio: Positive
    rule: SurvivalRule
    static_length: Whole


@dataclass(frozen=True)
class SurvivalSetting(Checked):
    """Rule at captured sampling ``settings``: follow ``rule`` where it ``pays``, else draft ``static_length`` tokens."""

    settings: SamplingSettings
    rule: SurvivalRule
    pays: bool
    static_length: Whole
    costs: tuple[Positive, ...]  # C of 0, 1, … tokens
    calibration: StopCalibration = field(default_factory=StopCalibration)  # of ``now``'s logit
    elsewhere: tuple[Priced, ...] = ()  # what is best at other prices

    @cached_property
    def needed_L(self) -> np.ndarray:
        """Needed S_g b [L] at these costs, by `SurvivalRule.needed`."""
        return np.array(self.rule.needed(self.costs))

    def chances(self, said: Answers) -> tuple[Any, Any]:
        """Calibrate the chances of `now` and `next`; of numbers or arrays."""
        return self.calibration.probability(said.now), UNCHANGED.probability(said.following)

    def stops(self, survival: Any, following: Any, drafted: Any) -> Any:
        """Tell whether drafting stops after ``drafted`` tokens that all survive with chance ``survival``; numbers or arrays."""
        return (survival * following <= self.needed_L[drafted]) & (drafted >= self.rule.least)

    def at_pace(self, factor: float) -> "SurvivalSetting":
        """Adapt the rules to other rounds that are worth ``factor`` times as much, on every machine."""
        elsewhere = tuple(replace(one, rule=one.rule.at_pace(factor)) for one in self.elsewhere)
        return replace(self, rule=self.rule.at_pace(factor), elsewhere=elsewhere)

    def priced(self, cost_ratio: float) -> tuple[SurvivalRule, int]:
        """Return rule and static length on another machine: the rate between those of its neighbours in ln c, all else the
        nearer's. `ValueError` where the fit found none for other machines."""
        if not self.elsewhere:
            raise ValueError(
                f"{self.settings.name} has no rules for machines of other prices. Fit with cost_ratios, or load without reprice."
            )
        by_ratio = sorted(self.elsewhere, key=lambda one: one.cost_ratio)
        logs, log_ratio = np.log([one.cost_ratio for one in by_ratio]), math.log(cost_ratio)
        rate = np.interp(log_ratio, logs, [one.rule.rate for one in by_ratio])
        nearest = by_ratio[np.abs(logs - log_ratio).argmin()]
        return replace(nearest.rule, rate=float(rate)), nearest.static_length


@dataclass(frozen=True)
class RatioPrices:
    """Prices that rules were chosen by: ``cost_ratio`` of a machine after ``context`` tokens, from the latency profile
    ``profile_hash``."""

    cost_ratio: float
    context: float
    profile_hash: str
