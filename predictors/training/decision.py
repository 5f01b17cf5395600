"""What a drafting policy is worth: tokens per target-pass equivalent, replayed on label rows.

    value = Σ tokens / Σ cost        tokens = min(accepted, m) + 1
    cost = 1 + verify · m + draft · passes · (1 - hit · [accepted >= m])

m is the number of tokens the policy submits in that round. Submitting m tokens takes m draft passes; a stop by the next law takes
one more (that law was computed to be read). Of a chain, all drafting is paid for (hit = 0). A branch-parallel decoder drafts
while the target verifies: where a block is accepted whole and the branch point's token is hit, with probability ``hit``, the next
block is there already (the renewal model; specification of drafting, section 10).

At temperature 0 this is exact: drafted tokens and laws do not depend on where the chain stops, and every row was drafted to
at least γ. At other temperatures it is the expectation over the drafts that were really drawn. The rows are those that
the collected decoders visited; a policy that stops elsewhere visits others, which only the benchmark sees.

Shape suffixes: N rows, G draft positions (the label's γ).
"""

from dataclasses import dataclass

import numpy as np
import torch

from predictors.decision_rule import ALL, NONE, DecisionRule, LengthRule


@dataclass(frozen=True)
class Play:
    """A policy's choice in every row: ``submitted`` tokens and draft ``passes``."""

    submitted: np.ndarray
    passes: np.ndarray


@dataclass(frozen=True)
class Costs:
    """In units of a target pass: a ``draft`` pass, and what each submitted token adds to the target's (``verify``). ``hit``: the
    share of branch points hit behind a block accepted whole; 0 for chains, which have none."""

    draft: float
    verify: float = 0.0
    hit: float = 0.0

    def __post_init__(self) -> None:
        if min(self.draft, self.verify) < 0 or not 0 <= self.hit <= 1:
            raise ValueError(f"costs must be >= 0 and hit in [0, 1], got {self}.")


@dataclass(frozen=True)
class Replay:
    """Rows to replay: accepted counts, draft confidences up to γ, and what passes cost."""

    accepted_N: np.ndarray
    confidence_NG: np.ndarray
    costs: Costs

    @property
    def gamma(self) -> int:
        return self.confidence_NG.shape[1]

    def static(self, tokens: int) -> Play:
        """Always draft ``tokens``."""
        drafted = np.full(len(self.accepted_N), tokens)
        return Play(drafted, drafted)

    def confidence(self, epsilon: float) -> Play:
        """Draft while max_x q(x) ≥ ε, at least one token and at most γ."""
        stops_NG = self.confidence_NG < epsilon
        stops_NG[:, 0] = False
        stopped = stops_NG.any(axis=1)
        submitted = np.where(stopped, stops_NG.argmax(axis=1), self.gamma)
        return Play(submitted, submitted + stopped)

    def hrad(self, probabilities_N3: np.ndarray, rule: DecisionRule, reads_first_law: bool) -> Play:
        """H-RAD's play: none → 0 tokens, some → `confidence`, all → γ.

        ``reads_first_law``: the class is known only after the first draft law, so that "none" has cost one pass.
        """
        predicted_N = rule.classes(torch.from_numpy(probabilities_N3)).numpy()
        soft = self.confidence(rule.epsilon)
        none, every = predicted_N == NONE, predicted_N == ALL
        submitted = np.where(none, 0, np.where(every, self.gamma, soft.submitted))
        passes = np.where(none, int(reads_first_law), np.where(every, self.gamma, soft.passes))
        return Play(submitted, passes)

    def length(self, probabilities_NL: np.ndarray, rule: LengthRule, reads_first_law: bool) -> Play:
        """The explicit predictor's play: as many tokens as the rule says; 0 too has cost a pass if it ``reads_first_law``."""
        submitted = rule.lengths(torch.from_numpy(probabilities_NL)).numpy()
        return Play(submitted, np.maximum(submitted, int(reads_first_law)))

    def head(self, probabilities_NC: np.ndarray, rule: DecisionRule | LengthRule, reads_first_law: bool) -> Play:
        """The play of a head under its kind of rule."""
        if isinstance(rule, LengthRule):
            return self.length(probabilities_NC, rule, reads_first_law)
        return self.hrad(probabilities_NC, rule, reads_first_law)

    def oracle(self) -> Play:
        """Clairvoyant: draft exactly what will be accepted, which is optimal while a draft pass costs less than a target pass."""
        useful = self.useful * (self.costs.draft + self.costs.verify < 1)
        return Play(useful, useful)

    @property
    def useful(self) -> np.ndarray:
        """How many of γ drafted tokens would be accepted, per row."""
        return np.minimum(self.accepted_N, self.gamma)

    def tokens(self, play: Play) -> np.ndarray:
        """Emitted tokens per row."""
        return np.minimum(self.accepted_N, play.submitted) + 1

    def cost(self, play: Play) -> np.ndarray:
        """Cost per row, in target passes."""
        costs = self.costs
        paid = 1 - costs.hit * (self.accepted_N >= play.submitted)
        return 1 + costs.verify * play.submitted + costs.draft * play.passes * paid

    def value(self, play: Play) -> float:
        """Tokens per target-pass equivalent."""
        return float(self.tokens(play).sum() / self.cost(play).sum())
