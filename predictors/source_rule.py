"""Where a round's draft comes from: of a lookup so many tokens, a tail drawn after them, or the draft model's own chain.

    h_i                P(the lookup's i-th token is accepted | those before it were) = σ(hazard · z_i),      S_n = Π_{i<=n} h_i
    E(n, m)            1 + Σ_{i<=n} S_i + S_n gained_m              tokens of n looked up and a tail of m
    worth of a lookup  max_{n,m} E(n, m) - ρ (C(n, m) + b E(n, m) [m = 0])
    worth of a chain   tokens · x - ρ C(drafted · x)

C is what rounds take, in rounds of none; b what the draft model takes per token to catch up with a round without it, which the
next chain pays. ρ is a rate: ``share`` of that of the controller of chains, so that it is repriced with that one. z and x are
what a root knows; answers are numbers of one root, or arrays of many. Shape suffixes: ... roots, L tokens of the lookup, M tails,
Z and F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from predictors.config import Checked, NotNegative, Positive
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import Shape, catching_up, lookup_costs, round_latency
from predictors.sampling import SamplingSettings

TOKEN = ("one", "log_match", "log_place", "first", "share", "share_first", "log_seen", "log_seen_share")
ROOT = ("one", "log_match", "share", "log_seen", "log_seen_share", "rejected", "luck", "log_found")


BEHIND = 5  # tokens of a usual lookup, by which the price of catching up is read


class Chosen(NamedTuple):
    """Whether the lookup ``takes`` over with so many ``tokens``, and the place of the tail after them; ``far``: how far a root's
    features are from those learned from (mean squared standardised coordinate)."""

    takes: Any
    tokens: Any
    tail: Any
    far: Any


class Seen(NamedTuple):
    """What a root knows: the lookup's ``match``, ``found`` tokens, ``seen`` and ``agreed`` (`predictors.lookup.Found`); whether
    the last chain was ``rejected``, and the ``luck`` of chains (`predictors.survival.features`)."""

    match: Any
    found: Any
    seen: Any
    agreed: Any
    rejected: Any
    luck: Any


def token_features(seen: Seen, length: int) -> np.ndarray:
    """Of the first ``length`` tokens of a lookup [..., L, Z]."""
    place_L = np.arange(length)
    match, share, times = (np.asarray(one)[..., None] for one in (seen.match, _share(seen), _times(seen)))
    made = np.ones((*np.shape(match)[:-1], length, len(TOKEN)))
    first_L = place_L == 0
    columns = (
        np.log1p(match + place_L),
        np.log1p(place_L),
        first_L,
        share,
        share * first_L,
        times,
        times * share,
    )
    for column, values in enumerate(columns, start=1):
        made[..., column] = values
    return made


def root_features(seen: Seen) -> np.ndarray:
    """[..., F]."""
    share, times = _share(seen), _times(seen)
    log_match, log_found = np.log1p(seen.match), np.log1p(seen.found)
    return np.stack(
        np.broadcast_arrays(1.0, log_match, share, times, times * share, seen.rejected, seen.luck, log_found), axis=-1
    )


def _share(seen: Seen) -> Any:
    return seen.agreed / np.maximum(seen.seen, 1)


def _times(seen: Seen) -> Any:
    return np.log1p(seen.seen)


@dataclass(frozen=True)
class SourceRule(Checked):
    """See the module's docstring. ``costs``: by tail and looked up tokens; ``mean``, ``scale``: of the roots learned from. Roots
    are trusted up to a squared distance of ``max_distance``."""

    share: NotNegative
    hazard: tuple[float, ...]
    tails: tuple[int, ...]
    gained: tuple[NotNegative, ...]
    tokens: tuple[float, ...]
    drafted: tuple[float, ...]
    costs: tuple[tuple[Positive, ...], ...]
    behind: NotNegative
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]
    max_distance: Positive = 1.0

    def survival(self, seen: Seen) -> np.ndarray:
        """S [..., L]."""
        logits = token_features(seen, len(self.costs[0]) - 1) @ self._numbers[0]
        return np.asarray(np.cumprod(1 / (1 + np.exp(-logits)), axis=-1))

    def chosen(self, seen: Seen, rate: float, cost_L: Sequence[float]) -> Chosen:
        """The best source where chains are drawn at ``rate``, and rounds of theirs take ``cost_L`` by drafted tokens."""
        _, tails_M, gained_M, tokens_F, drafted_F, cost_ML, mean_F, scale_F = self._numbers
        rate, survives = self.share * rate, self.survival(seen)
        features = root_features(seen)
        drafted = np.clip(features @ drafted_F, 1.0, len(cost_L) - 1)
        chain = features @ tokens_F - rate * np.interp(drafted, np.arange(len(cost_L)), cost_L)
        emitted = (1 + np.cumsum(survives, axis=-1))[..., None, :] + survives[..., None, :] * gained_M[:, None]
        asleep_M1 = self.behind * (tails_M == 0)[:, None]
        worth = emitted - rate * (cost_ML[:, 1:] + asleep_M1 * emitted)
        there = np.arange(worth.shape[-1]) < np.asarray(seen.found)[..., None, None]
        worth = np.where(there, worth, -np.inf).reshape(*worth.shape[:-2], -1)
        best = worth.argmax(axis=-1)
        tail, place = np.divmod(best, there.shape[-1])
        takes = np.take_along_axis(worth, best[..., None], axis=-1)[..., 0] > chain
        return Chosen(takes, place + 1, tail, np.square((features - mean_F) / scale_F).mean(axis=-1))

    def at_prices(self, profile: LatencyProfile, context: float, sampled: bool) -> "SourceRule":
        """The same after ``context`` tokens on a machine of this latency ``profile``; ``sampled``: at a temperature above 0."""
        costs = lookup_costs(profile, len(self.costs[0]) - 1, self.tails, context, sampled)
        plain = round_latency(profile, Shape.chain(0), context, sampled).seconds
        return replace(self, costs=costs, behind=catching_up(profile, BEHIND, context) / plain)

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, ...]:
        named = (self.hazard, self.tails, self.gained, self.tokens, self.drafted, self.costs, self.mean, self.scale)
        return tuple(np.array(values) for values in named)


@dataclass(frozen=True)
class SourceSetting(Checked):
    """What is done at captured sampling ``settings``: follow ``rule`` where it ``pays``, else the chain alone."""

    settings: SamplingSettings
    rule: SourceRule
    pays: bool
