"""Lookups at every start of recorded texts: what they find, what drafting it gains (`predictors.replay.grid`), rules for that.

`Lookups.sourced` is `predictors.controllers.base.Sourced` at every start: its counts are those of `predictors.replay.chains`.

Shape suffixes: X texts, S starts, G positions of a chain, M tails, L or N tokens of a lookup, V rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictors.controllers.source import Seen, SourceRule
from predictors.controllers.takeover import TakeoverConfig
from predictors.replay.grid import Columns, Drafts, Starts, first_of
from predictors.training.survival.model import SourceChoice


@dataclass(frozen=True)
class Lookups:
    """Lookups at ``starts`` whose drafter has one, with ``tails`` of so many drawn tokens after it."""

    starts: Starts
    tails: tuple[int, ...] = ()

    @cached_property
    def tokens_XSL(self) -> np.ndarray:
        """Tokens that lookups found, -1 where nothing is."""
        assert self.starts.lookup is not None, "its drafter has a lookup"
        tokens_XSL = self._column("lookup")[..., : self.starts.lookup.length]
        return np.where(self.match_XS[..., None] > 0, tokens_XSL, -1)

    @cached_property
    def match_XS(self) -> np.ndarray:
        """Number of tokens of the match; 0 where it counts as none."""
        match_XS, lookup = self._column("match"), self.starts.lookup
        return match_XS * (match_XS >= (1 if lookup is None else lookup.least))

    @cached_property
    def found_XS(self) -> np.ndarray:
        return np.asarray((self.tokens_XSL >= 0).sum(axis=-1))

    @cached_property
    def known(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of `Seen` [X, S]: tokens of the match, tokens found, earlier occurrences of the match's last tokens, and those
        of them that went on with the first token found."""
        return self.match_XS, self.found_XS, self._column("seen"), self._column("agreed")

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
        room_XS = self._room_XS
        most_XS = np.minimum.reduce([self.found_XS, self._through_XS, room_XS])
        looked_up_XS = np.minimum(looked_up_XS, most_XS)
        drawable_XS = np.take_along_axis(self._drawable_LXS, looked_up_XS[None], axis=0)[0]
        drawn_XS = np.minimum.reduce([drawn_XS, drawable_XS, room_XS - looked_up_XS])
        drawn_XS = np.where(looked_up_XS == self._through_XS, 0, drawn_XS)
        submitted_XS1, drawn_XS1, looked_up_XS1 = (
            values[..., None] for values in (looked_up_XS + drawn_XS, drawn_XS, looked_up_XS)
        )
        return Drafts.of(submitted_XS1, drawn_XS1, looked_up=looked_up_XS1)

    @cached_property
    def _room_XS(self) -> np.ndarray:
        """Number of tokens that the budget and the depth leave to draft."""
        budget_X1 = np.array([[one.budget] for one in self.starts.texts])
        left_XS = np.maximum(budget_X1 - 2 - np.arange(self.starts.left_XS.shape[1]), 0)
        return np.asarray(np.minimum(left_XS, self.starts.depth) * self.starts.valid_XS)

    @cached_property
    def _through_XS(self) -> np.ndarray:
        """Number of tokens up to an end of sequence that was found; more than there are where none was."""
        eos = [list(one.eos_tokens) for one in self.starts.texts]
        ends = [np.isin(tokens_SL, known) for tokens_SL, known in zip(self.tokens_XSL, eos, strict=True)]
        return first_of(np.stack(ends)) + 1

    @cached_property
    def _drawable_LXS(self) -> np.ndarray:
        """Number of tokens that can be drawn after so many of the lookup: up to an end of sequence, which none is known to be
        after a wrong lookup."""
        ends = (
            self.starts.ends_after(looked_up) & (would_XS >= looked_up)[..., None]
            for looked_up, would_XS in enumerate(self.starts.would_LXS)
        )
        return np.stack([first_of(ends_XSG) + 1 for ends_XSG in ends])

    def _column(self, name: str) -> np.ndarray:
        return self.starts.by_start([one.columns[name] for one in self.starts.texts])
