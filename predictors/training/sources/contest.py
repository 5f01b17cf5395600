"""Chains and lookups on the same texts at one sampling setting: what rules that choose between them come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from predictors.controllers.takeover import TakeoverConfig
from predictors.lookup import LONGEST
from predictors.replay.grid import Totals
from predictors.replay.lookups import Lookups
from predictors.source_rule import SourceRule
from predictors.survival.rule import SurvivalSetting
from predictors.training.rule_choice import RuleChoice, choose
from predictors.training.sources.options import Options
from predictors.training.survival.grid import Source, SurvivalGrid, no_source
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
        starts = replace(model.grids[split][place].starts, lookup=LookupLength(predictor.lookup))
        chains = predictor.played(SurvivalGrid(starts), model, inner)
        return Contest(Options(Lookups(starts), tails), chains, inner)

    @property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return self.chains.grid.starts.document_X

    def static(self) -> Totals:
        """The best static chain."""
        return self.chains.static(self.inner.static_length)

    def served(self, source: Source = no_source) -> Totals:
        """Chains where no ``source`` takes over."""
        return self.chains.under(self.inner, source)

    def by(self, rule: Any) -> Source:
        """When ``rule`` lets another source take over."""
        if isinstance(rule, TakeoverConfig):
            return self.options.takeover(rule)
        assert isinstance(rule, SourceRule)
        return self.options.weighed(rule, self.inner.rule.rate, self.inner.costs)

    def best(self, rules: Sequence[Any], folds: int, seed: int) -> tuple[Any, RuleChoice]:
        """The rule of most tokens per second, and what choosing it is worth over the static chain."""
        totals, always = [self.served(self.by(rule)) for rule in rules], self.static()
        tokens_RX, seconds_RX = (np.stack([getattr(one, name) for one in totals]) for name in ("tokens_X", "seconds_X"))
        choice = choose(tokens_RX, seconds_RX, always.tokens_X, always.seconds_X, self.document_X, folds, seed)
        return rules[choice.rule], choice
