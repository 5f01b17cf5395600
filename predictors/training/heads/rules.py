"""Which rules a head is served with at one sampling setting: by replayed tokens per second on validation texts.

    static     the best length on training and validation texts; of branches, the best pair for drafting and for retention
    rule       the best candidate, where its gain out of fold is surely one (`training.rule_choice`); elsewhere the static length
    tried      the best candidate that asks the head, whether it pays or not

Of branches the rule for drafting is chosen first, then the one for retention beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

import numpy as np

from predictors.config import Checked, Count, Probability, not_empty
from predictors.decision_rule import ARGMAX, EXPECTATION, DecisionRule, LengthRule
from predictors.replay.grid import Totals
from predictors.training.heads.served import Choice, Rule, Served
from predictors.training.heads.target import Target
from predictors.training.rule_choice import RuleChoice, choose

NEVER = 1.01  # a probability no class reaches
COST_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)  # of a drafted token, in the rule that weighs lengths


@dataclass(frozen=True)
class Candidates(Checked):
    """Rules tried: ``epsilons``, confidence thresholds; ``probabilities``, H-RAD's thresholds of "none" and "all" besides the
    argmax (empty: argmax only). Their gain is judged out of so many ``folds`` of documents."""

    epsilons: Annotated[tuple[Probability, ...], not_empty] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    probabilities: tuple[Probability, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    folds: Count = 5
    seed: int = 0

    def rules(self, target: Target, draft_cost: float) -> list[Rule]:
        """Every rule tried for a head of that target, the argmax first."""
        if target.ordered:
            return [LengthRule(ARGMAX, draft_cost), *(LengthRule(EXPECTATION, draft_cost * by) for by in COST_FACTORS)]
        thresholds = (*self.probabilities, NEVER) if self.probabilities else ()
        pairs = [(None, None), *product(thresholds, repeat=2)]
        return [DecisionRule(epsilon, none, every) for epsilon in self.epsilons for none, every in pairs]


@dataclass(frozen=True)
class Chosen:
    """What is served: static lengths, rules (``None``: static), the best rules ``tried`` that ask, the best confidence
    ``epsilon``, and what choosing among rules is worth out of fold."""

    static_gamma: int
    retained_gamma: int
    rule: Rule | None
    retention: Rule | None
    tried: tuple[Rule, Rule]
    epsilon: float
    choice: RuleChoice | None

    @property
    def static(self) -> tuple[Choice, Choice]:
        return self.static_gamma, self.retained_gamma

    @property
    def policy(self) -> tuple[Choice, Choice]:
        """What is drafted, and what is retained."""
        return (
            self.static_gamma if self.rule is None else self.rule,
            self.retained_gamma if self.retention is None else self.retention,
        )


def static_pair(several: Sequence[Served]) -> tuple[int, int]:
    """The static lengths of most tokens per second over all texts given; of equals the shortest. Chains retain as they draft."""
    depth = min(one.decodes.idle.depth for one in several)

    def rate(pair: tuple[int, int]) -> float:
        totals = [one.totals(*pair) for one in several]
        return float(sum(one.tokens_X.sum() for one in totals) / sum(one.seconds_X.sum() for one in totals))

    if several[0].decodes.retained is None:
        return max(((length, length) for length in range(depth + 1)), key=rate)
    draft = max(((length, depth) for length in range(depth + 1)), key=rate)[0]
    return max(((draft, length) for length in range(depth + 1)), key=rate)


def choose_rules(held: Served, static: tuple[int, int], rules: Sequence[Rule], candidates: Candidates) -> Chosen:
    """Beside ``static`` lengths, on validation texts."""
    branches = held.decodes.retained is not None
    drafting = [held.totals(rule, static[1] if branches else rule) for rule in rules]
    asks = [rule.reads_head for rule in rules]
    tried = rules[_fastest(drafting, asks)]
    best, made = rules[_fastest(drafting)], drafting
    kept, tried_kept = best, tried
    if branches:
        made = [held.totals(best, rule) for rule in rules]
        kept, tried_kept = rules[_fastest(made)], rules[_fastest(made, asks)]
    choice = _judged(made, held.totals(*static), held, candidates)
    rule, retention = (best, kept) if choice.pays else (None, None)
    soft = [held.totals(float(epsilon), static[1] if branches else float(epsilon)) for epsilon in candidates.epsilons]
    epsilon = candidates.epsilons[_fastest(soft)]
    return Chosen(*static, rule, retention, (tried, tried_kept), epsilon, choice)


def fixed_rules(static: tuple[int, int], rule: Rule, candidates: Candidates) -> Chosen:
    """A rule that is given, not chosen."""
    return Chosen(*static, rule, rule, (rule, rule), getattr(rule, "epsilon", candidates.epsilons[0]), None)


def _fastest(made: Sequence[Totals], allowed: Sequence[bool] | None = None) -> int:
    """Of most tokens per second; of equals the first."""
    rates = [one.rate if allowed is None or allowed[number] else 0.0 for number, one in enumerate(made)]
    return int(np.argmax(rates))


def _judged(made: Sequence[Totals], always: Totals, held: Served, candidates: Candidates) -> RuleChoice:
    """What choosing is worth on documents that did not choose."""
    tokens_RX, seconds_RX = (np.stack([getattr(one, name) for one in made]) for name in ("tokens_X", "seconds_X"))
    document_X = held.decodes.document_X
    statics = always.tokens_X, always.seconds_X
    return choose(tokens_RX, seconds_RX, *statics, document_X, candidates.folds, candidates.seed)
