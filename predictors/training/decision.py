"""What a drafting policy is worth: tokens per target-pass equivalent, replayed on label rows.

    tokens = min(accepted, m) + 1        cost = pass(m) + [drafted with the target idle] draft · passes + [asked] decision

m is the number of tokens the policy submits in that round, pass(m) the target's pass over them. Submitting m tokens takes m draft
passes; a stop by the next law takes one more (that law was computed to be read). A chain is worth Σ tokens / Σ cost.

A branch-parallel decoder has rounds of two stages: drafted with the target idle (D), and retained of a branch that survived the
round before (R), whose drafting was hidden behind the target's pass. A block accepted whole is followed by R with probability
``hit``. With h the mean of hit · [accepted >= m] over a stage's rows, its rounds are of stage R in the share π of the chain of
both, and the decoder is worth the mixture of the stages' means,

    π = h_D / (1 - h_R + h_D)        value = ((1-π) tokens_D + π tokens_R) / ((1-π) cost_D + π cost_R)

which for one α and one m is the renewal model (specification of drafting, section 10), and for hit = 0 a chain. A
head is asked only where its rule could turn on what it says. Left out: branches that take longer than the target's pass.

At temperature 0 a row's tokens and cost are exact: drafted tokens and laws do not depend on where the chain stops, and every row
was drafted to at least γ. At other temperatures they are expectations over the drafts that were really drawn. The rows are those
that the collected decoders visited; a policy that stops elsewhere visits others, which only the benchmark sees.

Shape suffixes: N rows, G draft positions (the label's γ), P plays, C columns of a tally.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from predictors.decision_rule import ALL, NONE, DecisionRule, LengthRule

ORACLE_STEPS = 50  # converges in a handful
ROUNDING = 1e-9


@dataclass(frozen=True)
class Play:
    """A policy's choice in every row: ``submitted`` tokens, draft ``passes`` and decisions ``asked`` of a head."""

    submitted: np.ndarray
    passes: np.ndarray
    asked: np.ndarray | int = 0


@dataclass(frozen=True)
class Costs:
    """In units of a target pass: a ``draft`` pass, the target's ``passes`` over 0, 1, ... submitted tokens (empty: 1 each), and a
    head's ``decision``. ``hit``: the share of branch points hit behind a block accepted whole; 0 for chains, which have none."""

    draft: float
    passes: tuple[float, ...] = ()
    hit: float = 0.0
    decision: float = 0.0

    def __post_init__(self) -> None:
        if min(self.draft, self.decision) < 0 or not 0 <= self.hit <= 1 or any(cost <= 0 for cost in self.passes):
            raise ValueError(f"draft and decision must be >= 0, hit in [0, 1] and every pass positive, got {self}.")


@dataclass(frozen=True)
class Replay:
    """Rows to replay: accepted counts, draft confidences up to γ, which rounds follow a branch that survived, and the costs."""

    accepted_N: np.ndarray
    confidence_NG: np.ndarray
    survived_N: np.ndarray
    costs: Costs

    @property
    def gamma(self) -> int:
        return self.confidence_NG.shape[1]

    def static(self, tokens: int) -> Play:
        """Always ``tokens``."""
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
        return Play(submitted, passes, int(rule.reads_head))

    def length(self, probabilities_NL: np.ndarray, rule: LengthRule, reads_first_law: bool) -> Play:
        """The explicit predictor's play: as many tokens as the rule says; 0 too has cost a pass if it ``reads_first_law``."""
        submitted = rule.lengths(torch.from_numpy(probabilities_NL)).numpy()
        return Play(submitted, np.maximum(submitted, int(reads_first_law)), 1)

    def head(self, probabilities_NC: np.ndarray, rule: DecisionRule | LengthRule, reads_first_law: bool) -> Play:
        """The play of a head under its kind of rule."""
        if isinstance(rule, LengthRule):
            return self.length(probabilities_NC, rule, reads_first_law)
        return self.hrad(probabilities_NC, rule, reads_first_law)

    def oracle(self) -> Play:
        """Clairvoyant: knows what will be accepted, and of 0..γ tokens submits in every row those that are worth most in the
        long run. Whatever the costs, no static play is worth more on the same rows.

        By policy iteration: argmax_m tokens - ρ cost + w hit, ρ the play's own worth and w what stage R is worth over stage D.
        It begins with what will be accepted, which is optimal where wider passes cost no more.
        """
        best = np.where(self.costs.draft < 1, self.useful, 0)
        tallies_GNC = np.stack([self.tally(self.static(tokens)) for tokens in range(self.gamma + 1)])
        tokens_GN, cost_GN, hits_GN = np.moveaxis((tallies_GNC[..., :4] + tallies_GNC[..., 4:])[..., 1:], -1, 0)
        for _ in range(ORACLE_STEPS):
            sums_C = self.tally(Play(best, best)).sum(axis=0)
            value_GN = tokens_GN - worth(sums_C) * cost_GN + advantage(sums_C) * hits_GN
            better = value_GN.argmax(axis=0)
            if value_GN[better, self._rows].sum() <= value_GN[best, self._rows].sum() + ROUNDING:
                break
            best = better
        return Play(best, best)

    @property
    def _rows(self) -> np.ndarray:
        return np.arange(len(self.accepted_N))

    def staged(self, draft: Play, retention: Play) -> Play:
        """``retention`` in the rounds that follow a branch that survived, ``draft`` in all others."""
        names = ("submitted", "passes", "asked")
        return Play(*(np.where(self.survived_N, getattr(retention, name), getattr(draft, name)) for name in names))

    @property
    def useful(self) -> np.ndarray:
        """How many of γ drafted tokens would be accepted, per row."""
        return np.minimum(self.accepted_N, self.gamma)

    def tokens(self, play: Play) -> np.ndarray:
        """Emitted tokens per row."""
        return np.minimum(self.accepted_N, play.submitted) + 1

    def cost(self, play: Play) -> np.ndarray:
        """Cost per row, in target passes."""
        passes = np.array(self.costs.passes or (1.0,) * (self.gamma + 1))
        drafting = self.costs.draft * play.passes * ~self.survived_N
        return passes[play.submitted] + drafting + self.costs.decision * np.asarray(play.asked)

    def tally(self, play: Play) -> np.ndarray:
        """What `worth` sums up [N, C]: rows, tokens, cost and hits of stage D, then of stage R."""
        hits = self.costs.hit * (self.accepted_N >= play.submitted)
        counts_N4 = np.stack([np.ones(len(hits)), self.tokens(play), self.cost(play), hits], axis=1)
        return np.concatenate([counts_N4 * ~self.survived_N[:, None], counts_N4 * self.survived_N[:, None]], axis=1)

    def value(self, play: Play) -> float:
        """Tokens per target-pass equivalent."""
        return float(worth(self.tally(play).sum(axis=0)))

    def best_pair(self, plays: Sequence[Play]) -> tuple[int, int]:
        """Which two of ``plays``, for stages D and R, are worth most together; of equals the first. Without stage R one plays
        both."""
        sums_PC = np.stack([self.tally(play).sum(axis=0) for play in plays])
        if not self.survived_N.any():
            best = int(worth(sums_PC).argmax())
            return best, best
        draft_PPC = np.repeat(sums_PC[:, None, :4], len(plays), axis=1)
        retention_PPC = np.repeat(sums_PC[None, :, 4:], len(plays), axis=0)
        values_PP = worth(np.concatenate([draft_PPC, retention_PPC], axis=2))
        draft, retention = np.unravel_index(values_PP.argmax(), values_PP.shape)
        return int(draft), int(retention)


def advantage(sums_C: np.ndarray) -> float:
    """What a round of stage R is worth over one of stage D, in tokens, that it may lead to others of stage R included."""
    if not sums_C[4]:
        return 0.0
    (tokens_D, cost_D, hit_D), (tokens_R, cost_R, hit_R) = (
        part[1:] / max(part[0], 1e-9) for part in sums_C.reshape(2, 4)
    )
    return float((tokens_R - tokens_D - worth(sums_C) * (cost_R - cost_D)) / (1 - hit_R + hit_D + 1e-12))


def worth(sums_C: np.ndarray) -> np.ndarray:
    """Tokens per target-pass equivalent from summed tallies [..., C]: [...]."""
    rows, tokens, cost, hits = np.moveaxis(sums_C.reshape(*sums_C.shape[:-1], 2, 4), -1, 0)
    rows = np.maximum(rows, 1e-9)  # a stage without rows has no sums either
    hit_D, hit_R = np.moveaxis(hits / rows, -1, 0)
    share_R = hit_D / (1 - hit_R + hit_D + 1e-12) * (sums_C[..., 4] > 0)
    shares = np.stack([1 - share_R, share_R], axis=-1)
    return (shares * tokens / rows).sum(axis=-1) / (shares * cost / rows).sum(axis=-1)
