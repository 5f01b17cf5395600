"""Chains and lookups on the same texts at one sampling setting: what lookups find and what drafting it gains
(`predictors.replay.grid`), replay of rules that choose between both, and training of ``source``: every source is scored at every
start of the training texts, for nothing.

    hazard     logistic regression on every token of every lookup up to the first wrong one
    gained     mean tokens of a tail after a lookup that was accepted whole
    chain      least squares of tokens emitted and drafted by the rounds of ``survival``, after rounds of all kinds

`Sources.sourced` is `predictors.controllers.base.Sourced` at every start: its counts are those of `predictors.replay.chains`.
Shape suffixes: X texts, S starts, G positions of a chain, M tails, L or N tokens of a lookup, V rounds, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from sklearn.linear_model import LogisticRegression

from predictors.controllers.source import Seen, SourceRule, root_features, token_features
from predictors.controllers.takeover import TakeoverConfig
from predictors.lookup import LookupSettings
from predictors.replay.grid import Columns, Drafts, Totals, first_of
from predictors.replay.policies import Lookups
from predictors.training.predictor import RuleChoice, best_of
from predictors.training.survival_model import LENGTHS, SourceChoice
from predictors.training.survival_predictor import ChainPolicies, SurvivalModel

LEAST_SCALE = 1e-3
MIDDLE = LENGTHS[len(LENGTHS) // 2]


@dataclass(frozen=True)
class Sources(Lookups):
    """Lookups with ``tails`` of so many drawn tokens after them."""

    tails: tuple[int, ...] = ()

    def seen(self, text_V: np.ndarray, start_V: np.ndarray, rejected_V: np.ndarray, luck_V: np.ndarray) -> Seen:
        match_V, found_V, seen_V, agreed_V = (values[text_V, start_V] for values in self.known)
        return Seen(match_V, found_V, seen_V, agreed_V, rejected_V, luck_V)

    def takeover(self, config: TakeoverConfig) -> SourceChoice:
        """Choose sources as `predictors.controllers.takeover` decides."""
        match_XS, found_XS, seen_XS, agreed_XS = self.known
        tokens_XS = config.tokens(match_XS, found_XS)
        takes_XS = config.takes_over(match_XS, tokens_XS, seen_XS, agreed_XS)
        drafts = self.sourced(tokens_XS, np.full_like(tokens_XS, config.tail))

        def source(*rounds: np.ndarray) -> Columns:
            cells = rounds[0], rounds[1]
            submitted_V, looked_up_V = drafts.tokens(*cells, 0)
            return submitted_V, looked_up_V, np.zeros_like(submitted_V), takes_XS[cells]

        return source

    def weighed(self, rule: SourceRule, rate: float, costs: Sequence[float]) -> SourceChoice:
        """Choose sources as `predictors.controllers.source` decides."""

        def source(*rounds: np.ndarray) -> Columns:
            cells, seen = (rounds[0], rounds[1]), self.seen(*rounds)
            made = rule.chosen(seen, rate, costs)
            takes_V = made.takes & (made.far <= rule.max_distance)
            submitted_V, looked_up_V = self._drafts_2MNXS[(slice(None), made.tail, made.tokens, *cells)]
            return submitted_V, looked_up_V, (seen.match > 0).astype(np.int64), takes_V

        return source

    @cached_property
    def _drafts_2MNXS(self) -> np.ndarray:
        """Submitted and looked up tokens of every tail after any number of the lookup's tokens."""
        like_XS, tokens_N = self.match_XS, range(self.tokens_XSL.shape[-1] + 1)
        drafts_MN = [
            [self.sourced(np.full_like(like_XS, tokens), np.full_like(like_XS, tail)) for tokens in tokens_N]
            for tail in self.tails
        ]
        names = ("submitted", "looked_up")
        return np.array([[[getattr(one, name)[..., 0] for one in row] for row in drafts_MN] for name in names])

    def sourced(self, looked_up_XS: np.ndarray, drawn_XS: np.ndarray) -> Drafts:
        """Draft ``looked_up_XS`` tokens, as far as found, and ``drawn_XS`` after them, at every start: `Drafts` [X, S, 1]."""
        looked_up_XS = np.minimum(looked_up_XS, self.most_XS)
        drawable_XS = np.take_along_axis(self._drawable_LXS, looked_up_XS[None], axis=0)[0]
        drawn_XS = np.minimum.reduce([drawn_XS, drawable_XS, self.room_XS - looked_up_XS])
        drawn_XS = np.where(looked_up_XS == self.through_XS, 0, drawn_XS)
        submitted_XS1, drawn_XS1, looked_up_XS1 = (
            values[..., None] for values in (looked_up_XS + drawn_XS, drawn_XS, looked_up_XS)
        )
        return Drafts.of(submitted_XS1, drawn_XS1, looked_up=looked_up_XS1)

    @cached_property
    def _drawable_LXS(self) -> np.ndarray:
        """Number of tokens that can be drawn after so many of the lookup: up to an end of sequence, which none is known to be
        after a wrong lookup."""
        ends = (
            self.starts.ends_after(looked_up) & (would_XS >= looked_up)[..., None]
            for looked_up, would_XS in enumerate(self.starts.would_LXS)
        )
        return np.stack([first_of(ends_XSG) + 1 for ends_XSG in ends])


@dataclass(frozen=True)
class Paced:
    """A ``rule`` by which another source takes over, with chains drawn at ``pace`` times their own rate: the lookups leave them
    the harder rounds, and what else could be done is worth more."""

    rule: TakeoverConfig | SourceRule
    pace: float = 1.0


@dataclass(frozen=True)
class Contest(ChainPolicies):
    """Chains as they are drafted at a setting, and what ``lookups`` offer, with ``tails`` of so many drawn tokens after them."""

    tails: tuple[int, ...]

    @staticmethod
    def of(model: SurvivalModel, split: str, place: int, lookup: int, tails: tuple[int, ...]) -> "Contest":
        """Set up the texts of a split, at the setting of index ``place``, with a lookup of so many tokens."""
        grid = model.grids[split][place]
        grid = replace(grid, starts=replace(grid.starts, lookup=LookupSettings(lookup)))
        played = model.played(grid, model.settings[place])
        return Contest(**vars(played), tails=tails)

    @cached_property
    def lookups(self) -> Sources:
        return Sources(self.grid.starts, self.tails)

    def under(self, paced: Paced) -> Totals:
        """Decode every text where ``paced`` decides when another source takes over."""
        inner, rule = self.made.at_pace(paced.pace), paced.rule
        if isinstance(rule, TakeoverConfig):
            source = self.lookups.takeover(rule)
        else:
            source = self.lookups.weighed(rule, inner.rule.rate, inner.costs)
        return replace(self, made=inner).decoded(source)

    def best(self, rules: Sequence[Paced], folds: int, seed: int) -> RuleChoice:
        """Find the rule of most tokens per second, and what choosing it gains over the best static chain."""
        return best_of(rules, self.under, self.static(), self.grid.starts.document_X, folds, seed)


def learned(train: Contest, context: float) -> SourceRule:
    """Learn the rule, at the rate of chains, before it is known whether it pays."""
    lookups = train.lookups
    features_VF, tokens_V, drafted_V = _chains(train)
    chain = [tuple(np.linalg.lstsq(features_VF, one_V, rcond=None)[0].tolist()) for one_V in (tokens_V, drafted_V)]
    scale_F = features_VF.std(axis=0)
    rule = SourceRule(
        share=1.0,
        hazard=hazard_of(lookups),
        tails=lookups.tails,
        gained=_gained(lookups),
        tokens=chain[0],
        drafted=chain[1],
        costs=((1.0,) * len(lookups.starts.would_LXS),) * len(lookups.tails),
        behind=0.0,
        mean=tuple(features_VF.mean(axis=0).tolist()),
        scale=tuple(np.where(scale_F > LEAST_SCALE, scale_F, 1.0).tolist()),
    )
    return rule.at_prices(train.grid.starts.prices, context)


def distances(contest: Contest, rule: SourceRule) -> np.ndarray:
    """Measure how far roots where something is found are from those learned from [V]."""
    return np.asarray(rule.chosen(_roots(contest, MIDDLE)[1], 1.0, contest.made.costs).far)


def hazard_of(lookups: Lookups) -> tuple[float, ...]:
    """Learn the weights of `predictors.controllers.source.lookup_survival`; `ValueError` where nothing is found."""
    none_XS, place_L = np.zeros(lookups.found_XS.shape), np.arange(lookups.tokens_XSL.shape[-1])
    right_XS1 = lookups.right_XS[..., None]
    reach_XS1 = np.minimum(lookups.found_XS, lookups.starts.left_XS)[..., None]
    tested_XSL = (place_L <= right_XS1) & (place_L < reach_XS1)  # all before which are the text's, as far as that goes
    features_NZ = token_features(Seen(*lookups.known, none_XS, none_XS), len(place_L))[tested_XSL]
    right_N = (place_L < right_XS1)[tested_XSL]
    if not len(right_N):
        raise ValueError(
            "lookups propose no token along the training texts, so when they pay cannot be learned. Raise prompts.train and "
            "traces.texts.prompts, or traces.texts.max_new_tokens."
        )
    if right_N.all() or not right_N.any():  # one of either kind more, as by the rule of succession
        features_NZ = np.concatenate([features_NZ, np.tile(features_NZ.mean(axis=0), (2, 1))])
        right_N = np.append(right_N, [True, False])
    model = LogisticRegression(fit_intercept=False, max_iter=1000).fit(features_NZ, right_N)
    return tuple(model.coef_[0].tolist())


def _gained(lookups: Sources) -> tuple[float, ...]:
    would_LXS = lookups.starts.would_LXS
    count_L = np.arange(len(would_LXS))[:, None, None]
    room_LXS = np.minimum(lookups.starts.left_XS, lookups.starts.depth) - count_L
    whole_LXS = (would_LXS >= count_L) & (count_L > 0) & (count_L <= lookups.found_XS)
    made = []
    for tail in lookups.tails:
        there_LXS = whole_LXS & (room_LXS > tail)
        more_LXS = np.minimum(would_LXS - count_L, tail)
        made.append(float(more_LXS[there_LXS].mean()) if there_LXS.any() else 0.0)
    return tuple(made)


def _roots(contest: Contest, length: int) -> tuple[list[np.ndarray], Seen]:
    """Find rounds [V] of a static chain of ``length`` tokens at whose roots something is found, and what is known there."""
    places, *_ = contest.grid.static(length)
    found_V = contest.lookups.match_XS[places[:2]] > 0
    rounds = [one[found_V] for one in places]
    return rounds, contest.lookups.seen(*rounds)


def _chains(contest: Contest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Collect chains where something is found: what their roots know, tokens emitted and drafted [V]."""
    made = []
    for length in LENGTHS:
        rounds, seen = _roots(contest, length)
        drafted_V, _ = contest.chain(*rounds)
        accepted_V = np.minimum(contest.grid.starts.would_XS[rounds[0], rounds[1]], drafted_V)
        made.append((root_features(seen), accepted_V + 1.0, drafted_V.astype(float)))
    features_VF, tokens_V, drafted_V = (np.concatenate(column) for column in zip(*made, strict=True))
    return features_VF, tokens_V, drafted_V
