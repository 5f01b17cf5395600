"""Choice of the rules that a head is served with at one sampling setting: by replayed tokens per second on validation texts.

    static     the best length on training and validation texts; of branches, the best pair for drafting and for retention
    rule       the best candidate, where its gain out of fold is surely one (`training.rule_choice`); elsewhere the static length
    tried      the best candidate that runs the head, whether it pays or not

Of branches the rule for drafting is chosen first, then the one for retention with it, or with the static length; either may be
static. Both are chosen anew outside every fold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Annotated

import numpy as np

from predictors.config import Checked, Count, Probability, not_empty
from predictors.head import ARGMAX, EXPECTATION, DecisionRule, LengthRule
from predictors.training.heads.roots import Target
from predictors.training.heads.served import Choice, Rule, Served
from predictors.training.rule_choice import RuleChoice, choose_by, fastest, rate_of, table_of

NEVER = 1.01  # a probability no class reaches
COST_FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)  # of a drafted token, in the rule that weighs lengths


@dataclass(frozen=True)
class Candidates(Checked):
    """Rules to try: ``epsilons``, confidence thresholds; ``probabilities``, H-RAD's thresholds of "none" and "all" besides the
    argmax (empty: argmax only). Their gain is judged out of so many ``folds`` of documents."""

    epsilons: Annotated[tuple[Probability, ...], not_empty] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    probabilities: tuple[Probability, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    folds: Count = 5
    seed: int = 0

    def rules(self, target: Target, draft_cost: float) -> list[Rule]:
        """List every rule tried for a head of that target, the argmax first."""
        if target.ordered:
            return [LengthRule(ARGMAX, draft_cost), *(LengthRule(EXPECTATION, draft_cost * by) for by in COST_FACTORS)]
        thresholds = (*self.probabilities, NEVER) if self.probabilities else ()
        pairs = [(None, None), *product(thresholds, repeat=2)]
        return [DecisionRule(epsilon, none, every) for epsilon in self.epsilons for none, every in pairs]


@dataclass(frozen=True)
class Chosen:
    """Rules that are served, each for drafting and for retention: ``static`` lengths, ``rules`` (``None``: static), the best
    rules ``tried`` that run the head; the best confidence ``epsilon``, and what choosing among rules gains out of fold."""

    static: tuple[int, int]
    rules: tuple[Rule | None, Rule | None]
    tried: tuple[Rule, Rule]
    epsilon: float
    choice: RuleChoice | None

    @property
    def policy(self) -> tuple[Choice, Choice]:
        """Choices that are served, for drafting and for retention: a rule each, or a static length."""
        drafted, retained = (
            length if rule is None else rule for length, rule in zip(self.static, self.rules, strict=True)
        )
        return drafted, retained


def static_pair(several: Sequence[Served]) -> tuple[int, int]:
    """Find the static lengths of most tokens per second over all texts; of equals the shortest. Chains retain as they draft."""
    depth = min(one.idle.depth for one in several)

    def rate(pair: tuple[int, int]) -> float:
        return rate_of(one.totals(*pair) for one in several)

    if several[0].branches is None:
        return max(((length, length) for length in range(depth + 1)), key=rate)
    draft = max(((length, depth) for length in range(depth + 1)), key=rate)[0]
    return max(((draft, length) for length in range(depth + 1)), key=rate)


def choose_rules(held: Served, rules: Sequence[Rule], candidates: Candidates) -> Chosen:
    """Choose a head's rules on validation texts."""
    static, branches = held.static, held.branches is not None
    drafting_2RX = table_of(held.totals(rule, static[1] if branches else rule) for rule in rules)

    @cache  # at most once for every fold, and once for all
    def retention(drafting: int | None) -> np.ndarray:
        """Tabulate every rule for retention with one for drafting (``None``: the static length)."""
        choice = static[0] if drafting is None else rules[drafting]
        return table_of(held.totals(choice, rule) for rule in rules)

    def pick(mask_X: np.ndarray) -> tuple[tuple[Rule | None, Rule | None], np.ndarray]:
        """Pick the best rules for drafting and for retention (``None``: static), with their tokens and seconds."""
        best = fastest(drafting_2RX, mask_X)
        if not branches:
            return (rules[best], rules[best]), drafting_2RX[:, best]
        pairs: list[tuple[Rule | None, Rule | None]] = [(rules[best], None)]
        pairs += [(drafting, kept) for drafting in (rules[best], None) for kept in rules]
        table_2RX = np.hstack([drafting_2RX[:, best : best + 1], retention(best), retention(None)])
        number = fastest(table_2RX, mask_X)
        return pairs[number], table_2RX[:, number]

    document_X, every_X = held.idle.document_X, np.ones(drafting_2RX.shape[2], dtype=bool)
    choice = choose_by(pick, held.totals(*static).sums_2X, document_X, candidates.folds, candidates.seed)
    asks = [number for number, rule in enumerate(rules) if rule.settled is None]
    best = asks[fastest(drafting_2RX[:, asks], every_X)]
    kept = asks[fastest(retention(best)[:, asks], every_X)] if branches else best
    soft = [held.totals(float(epsilon), static[1] if branches else float(epsilon)) for epsilon in candidates.epsilons]
    epsilon = max(zip(soft, candidates.epsilons, strict=True), key=lambda one: one[0].rate)[1]
    served = choice.rule if choice.pays else (None, None)
    return Chosen(static, served, (rules[best], rules[kept]), epsilon, choice)
