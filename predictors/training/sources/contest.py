"""Chains and lookups on the same texts at one sampling setting: what rules that choose between them come to.

Shape suffixes: X readings, S starts, M tails, N tokens of the lookup, V rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from predictors.controllers.takeover import TakeoverConfig
from predictors.lookup import LONGEST
from predictors.replay.grid import Totals
from predictors.replay.lookups import Lookups
from predictors.source_rule import Seen, SourceRule
from predictors.survival.rule import SurvivalSetting
from predictors.training.rule_choice import RuleChoice, best_of
from predictors.training.survival.grid import Source, Taken
from predictors.training.survival.predictor import Played, SurvivalModel


@dataclass(frozen=True)
class LookupLength:
    """A lookup of ``length`` tokens, as a drafter has it."""

    length: int
    longest: int = LONGEST
    least: int = 1


@dataclass(frozen=True)
class Options:
    """What ``lookups`` offer at every start, with ``tails`` of so many tokens after them."""

    lookups: Lookups
    tails: tuple[int, ...]

    def takeover(self, config: TakeoverConfig) -> Source:
        """As `predictors.controllers.takeover` decides."""
        lookups = self.lookups
        tokens_XS = config.tokens(lookups.match_XS, lookups.found_XS)
        takes_XS = config.takes_over(lookups.match_XS, tokens_XS, lookups.seen_XS, lookups.agreed_XS)
        drafts = lookups.sourced(tokens_XS, np.full_like(tokens_XS, config.tail))

        def source(*rounds: np.ndarray) -> Taken:
            cells = rounds[0], rounds[1]
            submitted_V, looked_up_V = drafts.tokens(*cells, 0)
            return Taken(takes_XS[cells], submitted_V, looked_up_V, np.zeros_like(submitted_V))

        return source

    def weighed(self, rule: SourceRule, rate: float, costs: Sequence[float]) -> Source:
        """As `predictors.controllers.source` decides."""

        def source(*rounds: np.ndarray) -> Taken:
            cells, seen = (rounds[0], rounds[1]), self.seen(*rounds)
            made = rule.chosen(seen, rate, costs)
            takes_V = made.takes & (made.far <= rule.max_distance)
            submitted_V, looked_up_V = self._drafts_2MNXS[(slice(None), made.tail, made.tokens, *cells)]
            return Taken(takes_V, submitted_V, looked_up_V, (seen.match > 0).astype(np.int64))

        return source

    def seen(self, reading_V: np.ndarray, start_V: np.ndarray, rejected_V: np.ndarray, luck_V: np.ndarray) -> Seen:
        """What is known at some roots."""
        lookups = self.lookups
        known = (lookups.match_XS, lookups.found_XS, lookups.seen_XS, lookups.agreed_XS)
        match_V, found_V, seen_V, agreed_V = (values[reading_V, start_V] for values in known)
        return Seen(match_V, found_V, seen_V, agreed_V, rejected_V, luck_V)

    @cached_property
    def _drafts_2MNXS(self) -> np.ndarray:
        """Submitted and looked up tokens of every option."""
        lookups, like_XS = self.lookups, self.lookups.match_XS
        tokens_N = range(lookups.tokens_XSL.shape[-1] + 1)
        drafts_MN = [
            [lookups.sourced(np.full_like(like_XS, tokens), np.full_like(like_XS, tail)) for tokens in tokens_N]
            for tail in self.tails
        ]
        names = ("submitted", "looked_up")
        return np.array([[[getattr(one, name)[..., 0] for one in row] for row in drafts_MN] for name in names])


@dataclass(frozen=True)
class Paced:
    """When another source takes over by ``rule``, and chains are drawn at ``pace`` times their own rate: the lookups leave them
    the harder rounds, and what else could be done is worth more."""

    rule: TakeoverConfig | SourceRule
    pace: float = 1.0


@dataclass(frozen=True)
class Contest:
    """``chains`` as they are done at a setting, and other ``options``."""

    options: Options
    chains: Played

    @staticmethod
    def of(model: SurvivalModel, split: str, place: int, lookup: int, tails: tuple[int, ...]) -> "Contest":
        """On the texts of a split, at the setting in that place, beside a lookup of so many tokens."""
        grid = model.grids[split][place]
        starts = replace(grid.starts, lookup=LookupLength(lookup))
        chains = model.played(replace(grid, starts=starts), model.settings[place])
        return Contest(Options(Lookups(starts), tails), chains)

    @property
    def inner(self) -> SurvivalSetting:
        return self.chains.made

    @property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return self.chains.grid.starts.document_X

    def served(self, paced: Paced | None = None) -> Totals:
        """Chains where no rule lets another source take over."""
        if paced is None:
            return self.chains.decoded()
        inner, rule = self.inner.at_pace(paced.pace), paced.rule
        if isinstance(rule, TakeoverConfig):
            source = self.options.takeover(rule)
        else:
            source = self.options.weighed(rule, inner.rule.rate, inner.costs)
        return replace(self.chains, made=inner).decoded(source)

    def best(self, rules: Sequence[Paced], folds: int, seed: int) -> RuleChoice:
        """The rule of most tokens per second, and what choosing it is worth over the best static chain."""
        rule, choice = best_of(rules, self.served, self.chains.static(), self.document_X, folds, seed)
        return replace(choice, rule=rule)
