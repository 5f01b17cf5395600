"""When a lookup takes over from chains, at every start of recorded texts: rules of the controllers ``takeover`` and ``source``.

Shape suffixes: X readings, S starts, M tails, N tokens of the lookup, V rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictors.controllers.takeover import TakeoverConfig
from predictors.replay.lookups import Lookups
from predictors.source_rule import Seen, SourceRule
from predictors.training.survival.grid import Source, Taken


@dataclass(frozen=True)
class Options:
    """What ``lookups`` offer, with ``tails`` of so many tokens after them."""

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
            submitted_V, looked_up_V = drafts.submitted_XSM[(*cells, 0)], drafts.looked_up_XSM[(*cells, 0)]
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
        length = lookups.tokens_XSL.shape[-1]
        made = [
            [
                lookups.sourced(np.full_like(like_XS, tokens), np.full_like(like_XS, tail))
                for tokens in range(length + 1)
            ]
            for tail in self.tails
        ]
        return np.array(
            [
                [[getattr(one, name)[..., 0] for one in row] for row in made]
                for name in ("submitted_XSM", "looked_up_XSM")
            ]
        )
