"""What a lookup finds at every start of recorded texts, and what drafting it comes to (`predictors.replay.grid`).

`Lookups.sourced` is `predictors.controllers.base.Sourced` at every start: its counts are those of `predictors.replay.chains`.

Shape suffixes: X readings, S starts, G positions of a chain, M states of memory, L tokens of a lookup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from predictors.replay.grid import Drafts, Starts, first_of


@dataclass(frozen=True)
class Lookups:
    """Of ``starts`` whose drafter has a lookup."""

    starts: Starts

    @cached_property
    def tokens_XSL(self) -> np.ndarray:
        """What was found, -1 where nothing is."""
        lookup = self.starts.lookup
        assert lookup is not None, "its drafter has a lookup"
        return np.where(self.match_XS[..., None] > 0, self._column("lookup")[..., : lookup.length], -1)

    @cached_property
    def match_XS(self) -> np.ndarray:
        """Tokens of the match; 0 where it counts as none."""
        match_XS, lookup = self._column("match"), self.starts.lookup
        return match_XS * (match_XS >= (1 if lookup is None else lookup.least))

    @cached_property
    def seen_XS(self) -> np.ndarray:
        """Earlier occurrences of its last tokens."""
        return self._column("seen")

    @cached_property
    def agreed_XS(self) -> np.ndarray:
        """Those of them that went on with the first token found."""
        return self._column("agreed")

    @cached_property
    def found_XS(self) -> np.ndarray:
        """Tokens found."""
        return np.asarray((self.tokens_XSL >= 0).sum(axis=-1))

    def sourced(self, looked_up_XS: np.ndarray, drawn_XS: np.ndarray) -> Drafts:
        """At every start so many tokens of the lookup, as far as found, and so many drawn after them: `Drafts` [X, S, 1]."""
        room_XS = self._room_XS
        most_XS = np.minimum.reduce([self.found_XS, self._through_XS, room_XS])
        looked_up_XS = np.minimum(looked_up_XS, most_XS)
        ended_XS = looked_up_XS == self._through_XS
        drawable_XS = np.take_along_axis(self._drawable_LXS, looked_up_XS[None], axis=0)[0]
        drawn_XS = np.minimum.reduce([drawn_XS, drawable_XS, room_XS - looked_up_XS])
        drawn_XS1, looked_up_XS1 = np.where(ended_XS, 0, drawn_XS)[..., None], looked_up_XS[..., None]
        return Drafts.of(looked_up_XS1 + drawn_XS1, drawn_XS1, looked_up=looked_up_XS1)

    @cached_property
    def _room_XS(self) -> np.ndarray:
        """Tokens that the budget and the depth leave to draft."""
        budget_X1 = np.array([[one.text.budget] for one in self.starts.readings])
        left_XS = np.maximum(budget_X1 - 2 - np.arange(self.starts.left_XS.shape[1]), 0)
        return np.asarray(np.minimum(left_XS, self.starts.depth) * self.starts.valid_XS)

    @cached_property
    def _through_XS(self) -> np.ndarray:
        """Tokens up to an end of sequence that was found; more than there are where none was."""
        eos = [list(one.text.eos_tokens) for one in self.starts.readings]
        ends = [np.isin(tokens_SL, known) for tokens_SL, known in zip(self.tokens_XSL, eos, strict=True)]
        return first_of(np.stack(ends)) + 1

    @cached_property
    def _drawable_LXS(self) -> np.ndarray:
        """Tokens that can be drawn after so many of the lookup: up to an end of sequence, which none is known to be after a wrong
        lookup."""
        starts, made = self.starts, []
        for looked_up, would_XS in enumerate(starts.would_LXS):
            ends_XSG = starts.ends_after(looked_up) & (would_XS >= looked_up)[..., None]
            made.append(first_of(ends_XSG) + 1)
        return np.stack(made)

    def _column(self, name: str) -> np.ndarray:
        values: Sequence[np.ndarray] = [one.text.columns[name] for one in self.starts.readings]
        return self.starts.by_start(values)
