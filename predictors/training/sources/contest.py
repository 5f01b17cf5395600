"""Chains and lookups on the same texts at one sampling setting: what rules that choose between them come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictors.controllers.takeover import TakeoverConfig
from predictors.lookup import LONGEST
from predictors.replay.grid import Totals
from predictors.replay.lookups import Lookups
from predictors.source_rule import SourceRule
from predictors.survival.rule import SurvivalSetting
from predictors.training.rule_choice import RuleChoice, choose, table_of
from predictors.training.sources.options import Options
from predictors.training.survival.grid import Source, no_source
from predictors.training.survival.predictor import SurvivalModel, SurvivalPredictor
from predictors.training.survival.rules import Played


@dataclass(frozen=True)
class LookupLength:
    """A lookup of ``length`` tokens, as a drafter has it."""

    length: int
    longest: int = LONGEST
    least: int = 1


@dataclass(frozen=True)
class Contest:
    """``chains`` as they are done at setting ``inner``, and other ``options``."""

    options: Options
    chains: Played
    inner: SurvivalSetting

    @staticmethod
    def of(
        predictor: SurvivalPredictor, model: SurvivalModel, split: str, place: int, tails: tuple[int, ...]
    ) -> "Contest":
        """On the texts of a split, at the setting in that place."""
        inner = model.settings[place]
        grid = model.grids[split][place]
        starts = replace(grid.starts, lookup=LookupLength(predictor.lookup))
        chains = predictor.played(replace(grid, starts=starts), model, inner)
        return Contest(Options(Lookups(starts), tails), chains, inner)

    @property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return self.chains.grid.starts.document_X

    def static(self) -> Totals:
        """The best static chain."""
        return self.chains.static(self.inner.static_length)

    def served(self, paced: "Paced | None" = None) -> Totals:
        """Chains where no rule lets another source take over."""
        inner = self.inner if paced is None else self.inner.at_pace(paced.pace)
        return self.chains.under(inner, no_source if paced is None else self._source(paced.rule, inner))

    def _source(self, rule: TakeoverConfig | SourceRule, inner: SurvivalSetting) -> Source:
        if isinstance(rule, TakeoverConfig):
            return self.options.takeover(rule)
        return self.options.weighed(rule, inner.rule.rate, inner.costs)

    def best(self, rules: Sequence["Paced"], folds: int, seed: int) -> RuleChoice:
        """The rule of most tokens per second, and what choosing it is worth over the static chain."""
        table_2RX = table_of([self.served(rule) for rule in rules])
        choice = choose(table_2RX, self.static().sums_2X, self.document_X, folds, seed)
        return replace(choice, rule=rules[choice.rule])


@dataclass(frozen=True)
class Paced:
    """When another source takes over by ``rule``, and chains are drawn at ``pace`` times their own rate: the lookups leave them
    the harder rounds, and what else could be done is worth more."""

    rule: TakeoverConfig | SourceRule
    pace: float = 1.0
