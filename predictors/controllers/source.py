"""Controller ``source``: each round drafts whatever promises most: a lookup, a tail after it, or the chain of ``survival``.

Where something is found, `SourceRule` weighs all sources by what they promise and what they cost. Elsewhere, and
where the chain is worth more, ``survival`` decides as it does alone. The source follows from the root: lossless. Where settings
or context were not captured, features lie far from those learned from or a number is not finite, ``survival`` decides, too.

    h_i                P(the lookup's i-th token is accepted | those before it were) = σ(hazard · z_i),      S_n = Π_{i<=n} h_i
    E(n, m)            1 + Σ_{i<=n} S_i + S_n gained_m              tokens of n looked up and a tail of m
    worth of a lookup  max_{n,m} E(n, m) - ρ (C(n, m) + b E(n, m) [m = 0])
    worth of a chain   tokens · x - ρ C(drafted · x)

C is what rounds take, in rounds of none; b what the draft model takes per token to catch up with a round without it, which the
next chain pays. ρ is a rate: ``share`` of that of the controller of chains, so that it is repriced with that one. z and x are
what a root knows; answers are numbers of one root, or arrays of many. Shape suffixes: ... roots, L tokens of the lookup, M tails,
Z and F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from predictors.bundle import OTHERWISE, Bundle
from predictors.config import Checked, NotNegative, Positive
from predictors.controllers.base import Session, Sourced
from predictors.controllers.learned import Bundled, Guard
from predictors.controllers.survival import Survival, SurvivalSession
from predictors.controllers.takeover import SourcedSession, Sourcing, other_of
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.lookup import Found
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from predictors.survival import LOG_OF

TOKEN = ("one", "log_match", "log_place", "first", "share", "share_first", "log_seen", "log_seen_share")
ROOT = ("one", "log_match", "share", "log_seen", "log_seen_share", "rejected", "luck", "log_found")

PLACES = np.arange(256)
BEHIND = 5  # tokens of a usual lookup, by which the price of catching up is read


class ChosenSource(NamedTuple):
    """Source chosen at a root, or at each of an array."""

    takes: Any  # whether the lookup takes over
    tokens: Any  # with so many tokens
    tail: Any  # index of the tail after them
    far: Any  # mean squared standardised coordinate of the root's features, by those learned from


class Seen(NamedTuple):
    """Numbers known at a root that sources are weighed by."""

    match: Any  # of the lookup (`predictors.lookup.Found`), as the next three
    found: Any
    seen: Any
    agreed: Any
    rejected: Any  # whether the last chain was
    luck: Any  # of chains (`predictors.survival`)


def token_features(seen: Seen, length: int) -> np.ndarray:
    """Compute features of the first ``length`` tokens of a lookup [..., L, Z]."""
    match, share, times = (np.asarray(one)[..., None] for one in (seen.match, *_context(seen)))
    first_L, place_L = PLACES[:length] == 0, PLACES[:length]
    columns = (1.0, LOG_OF[match + place_L], LOG_OF[:length], first_L, share, share * first_L, times, times * share)
    return _stacked(columns, (*match.shape[:-1], length))


def lookup_survival(hazard: Sequence[float] | np.ndarray, seen: Seen, length: int) -> np.ndarray:
    """Predict S [..., L]: the chance that the first tokens of a lookup are all accepted."""
    logits = token_features(seen, length) @ np.asarray(hazard)
    return np.asarray(np.cumprod(1 / (1 + np.exp(-logits)), axis=-1))


def root_features(seen: Seen) -> np.ndarray:
    """Compute features of roots [..., F]."""
    share, times = _context(seen)
    columns = (1.0, LOG_OF[seen.match], share, times, times * share, seen.rejected, seen.luck, LOG_OF[seen.found])
    return _stacked(columns, np.shape(share))


def _context(seen: Seen) -> tuple[Any, Any]:
    """Return the share of earlier occurrences that agreed, and the log of how many there were."""
    return seen.agreed / np.maximum(seen.seen, 1), np.log1p(seen.seen)


def _stacked(columns: Sequence[Any], shape: Sequence[int]) -> np.ndarray:
    made = np.empty((*shape, len(columns)))
    for column, values in enumerate(columns):
        made[..., column] = values
    return made


@dataclass(frozen=True)
class SourceRule(Checked):
    """Rule that weighs a lookup against a chain; its formulas and symbols are the module's."""

    share: NotNegative
    hazard: tuple[float, ...]
    tails: tuple[int, ...]
    gained: tuple[NotNegative, ...]
    tokens: tuple[float, ...]
    drafted: tuple[float, ...]
    costs: tuple[tuple[Positive, ...], ...]  # by tail and looked up tokens
    behind: NotNegative
    mean: tuple[float, ...]  # of the features of the roots learned from
    scale: tuple[Positive, ...]
    max_distance: Positive = 1.0  # squared, up to which roots are trusted

    def survival(self, seen: Seen) -> np.ndarray:
        """Predict `lookup_survival`."""
        return lookup_survival(self._numbers[0], seen, len(self.costs[0]) - 1)

    def chosen(self, seen: Seen, rate: float, cost_L: Sequence[float]) -> ChosenSource:
        """Choose the best source where chains are drawn at ``rate``, and rounds of theirs take ``cost_L`` by drafted tokens."""
        _, gained_M1, price_ML, asleep_M1, chain_F2, mean_F, scale_F = self._numbers
        rate, survives_1L, features = self.share * rate, self.survival(seen)[..., None, :], root_features(seen)
        lines = features @ chain_F2  # tokens, drafted
        drafted = np.minimum(np.maximum(lines[..., 1], 1.0), len(cost_L) - 1)
        chain = lines[..., 0] - rate * np.interp(drafted, PLACES[: len(cost_L)], cost_L)
        emitted = 1 + survives_1L.cumsum(axis=-1) + survives_1L * gained_M1
        worth = emitted * (1 - rate * asleep_M1) - rate * price_ML
        there = PLACES[: worth.shape[-1]] < np.asarray(seen.found)[..., None, None]
        flat = np.where(there, worth, -np.inf).reshape(*worth.shape[:-2], worth.shape[-2] * worth.shape[-1])
        tail, place = np.divmod(flat.argmax(axis=-1), worth.shape[-1])
        far = np.square((features - mean_F) / scale_F).mean(axis=-1)
        return ChosenSource(flat.max(axis=-1) > chain, place + 1, tail, far)

    def at_prices(self, prices: RoundPrices, context: float) -> "SourceRule":
        """Price the rule's lookups anew, after ``context`` tokens at other ``prices``."""
        costs = prices.lookup_costs(len(self.costs[0]) - 1, self.tails, context)
        return replace(self, costs=costs, behind=prices.behind(BEHIND, context) / prices.chain(0, context))

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, ...]:
        """Arrays of hazards; of tails what they gain, cost, and leave to catch up with; of chains both lines; of roots two."""
        asleep_M1 = self.behind * (np.array(self.tails) == 0)[:, None]
        named = (self.hazard, np.array(self.gained)[:, None], np.array(self.costs)[:, 1:], asleep_M1)
        return tuple(map(np.array, (*named, np.transpose([self.tokens, self.drafted]), self.mean, self.scale)))


@dataclass(frozen=True)
class SourceSetting(Checked):
    """Rule at captured sampling ``settings``: follow ``rule`` where it ``pays``, else draft the chain alone."""

    settings: SamplingSettings
    rule: SourceRule
    pays: bool


class SourceSession(SourcedSession):
    """Decisions within one request; the model is run where a lookup found something."""

    inner: SurvivalSession

    def __init__(self, controller: "SourceController", setting: SourceSetting, inner: SurvivalSession) -> None:
        super().__init__(inner)
        self._controller, self._setting = controller, setting
        self._asked, self._aside = 0, False  # this round

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        controller, rule, inner = self._controller, self._setting.rule, self.inner
        self._aside = not controller.guard.reaches(root.position)
        self._asked = int(not self._aside)
        if self._aside:
            return None
        seen = Seen(found.length, len(found.tokens), found.seen, found.agreed, inner.rejected, inner.luck)
        made = rule.chosen(seen, inner.setting.rule.rate, inner.setting.costs)
        far = float(made.far)
        self._aside = not controller.guard.trusts(math.isfinite(far), far, rule.max_distance)
        if self._aside or not made.takes:
            return None
        return Sourced(int(made.tokens), rule.tails[int(made.tail)])

    def plan(self, root: Root) -> int | None:
        if root.found is None or not root.found.length:
            self._asked, self._aside = 0, False  # no source was weighed
        return super().plan(root)

    @property
    def asked(self) -> int:  # type: ignore[override]
        return super().asked + self._asked

    @property
    def bypassed(self) -> bool:  # type: ignore[override]
        return super().bypassed or self._aside


class SourceController(Sourcing, Bundled):
    """Weighs a lookup against the chain of ``survival``: the controller of an exported bundle of kind ``source``."""

    kind = "source"
    otherwise: Survival

    def __init__(self, bundle: Bundle) -> None:
        bundle.require(self.kind, "settings", OTHERWISE)
        self.settings = bundle.parts(SourceSetting, "settings")
        Sourcing.__init__(self, other_of(bundle))
        self.guard = Guard(self.kind, bundle.contract, "the chain of survival")

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> Self:
        changed = super().at_latency(profile, reprice)
        if reprice:
            context = self.otherwise.prices.context
            changed.settings = tuple(
                replace(made, rule=made.rule.at_prices(RoundPrices.at(profile, made.settings), context))
                for made in self.settings
            )
        return changed

    def start(self, settings: SamplingSettings) -> Session:
        made: SourceSetting | None = self.setting(settings)
        inner = self.otherwise.start(settings)
        return inner if made is None or not made.pays else SourceSession(self, made, inner)
