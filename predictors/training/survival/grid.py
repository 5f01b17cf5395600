"""Features of every chain that could be drafted along recorded texts, and decodes of a survival model there, in arrays.

    rows that a policy meets    rounds follow from its decisions, and what it knows of past rounds from them: `Walk`
    features                    `predictors.survival.features`, the same lines that are served

Shape suffixes: X readings, S starts, G positions of a chain, F features, V rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from predictors.replay.grid import Drafts, Starts, Totals, decoded
from predictors.replay.policies import drafts_of
from predictors.replay.prices import Prices
from predictors.survival.features import FIRST_LUCK, LUCK, REJECTED, SCALARS, Course, luck_after, numbers_of


class Taken(NamedTuple):
    """Of rounds [V]: whether another source takes over, with so many tokens in all, of them looked up, after so many queries."""

    takes_V: np.ndarray
    submitted_V: np.ndarray
    looked_up_V: np.ndarray
    asked_V: np.ndarray


# from readings, starts, and of past chains whether the last was rejected, and luck [V]: how many tokens of a chain to draft, and
# queries asked [V]; what is drafted instead
Draft = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Source = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Taken]


def no_source(reading_V: np.ndarray, *_: np.ndarray) -> Taken:
    """Chains alone."""
    none_V = np.zeros_like(reading_V)
    return Taken(none_V > 0, none_V, none_V, none_V)


@dataclass(frozen=True)
class Walk:
    """Rounds [V] of one decode of every reading, and what was known of past chains before each."""

    reading_V: np.ndarray
    start_V: np.ndarray
    rejected_V: np.ndarray
    luck_V: np.ndarray
    submitted_V: np.ndarray
    looked_up_V: np.ndarray
    asked_V: np.ndarray

    @staticmethod
    def of(starts: Starts, draft: Draft, source: Source = no_source) -> "Walk":
        """From the first start to every text's end."""
        reading_V, rounds = np.flatnonzero(starts.left_XS[:, 0]), []
        start_V, rejected_V = np.zeros_like(reading_V), np.zeros(len(reading_V))
        luck_V = np.full(len(reading_V), FIRST_LUCK)
        while len(reading_V):
            known = reading_V, start_V, rejected_V, luck_V
            takes_V, *sourced, queries_V = source(*known)
            drafted_V, asked_V = draft(*known)
            submitted_V, looked_up_V = np.where(takes_V, sourced, (drafted_V, np.zeros_like(drafted_V)))
            rounds.append((*known, submitted_V, looked_up_V, np.where(takes_V, 0, asked_V) + queries_V))
            accepted_V = np.minimum(starts.would_LXS[looked_up_V, reading_V, start_V], submitted_V)
            now_V = (accepted_V < submitted_V).astype(float)
            luck_V = np.where(takes_V, luck_V, luck_after(luck_V, accepted_V, now_V))
            rejected_V = np.where(takes_V, rejected_V, now_V)
            on_V = starts.left_XS[reading_V, start_V] > accepted_V + 1
            reading_V, start_V = reading_V[on_V], (start_V + accepted_V + 1)[on_V]
            rejected_V, luck_V = rejected_V[on_V], luck_V[on_V]
        return Walk(*map(np.concatenate, zip(*rounds, strict=True)))


@dataclass(frozen=True)
class SurvivalGrid:
    """``starts`` at one sampling setting, with the features of every chain from each but for those that follow from past rounds,
    ``known_XSGF``."""

    starts: Starts
    known_XSGF: np.ndarray

    @staticmethod
    def of(starts: Starts) -> "SurvivalGrid":
        """With its features."""
        readings = starts.readings
        on_XSG, columns = starts.on_path_XSG, [one.text.columns for one in readings]
        own_XSG, token_XSG = (
            np.where(
                on_XSG, starts.gather([_everywhere(one[text], one[slots]) for one in columns]), starts.column(slots)
            )
            for text, slots in (("unit_probability", "unit_probabilities"), ("token", "tokens"))
        )
        numbers = (starts.column("confidence"), own_XSG)
        match_XS = starts.by_start([one["match"] for one in columns])
        lookup_XSG = starts.by_start([one["lookup"] for one in columns])
        course = Course(match_XS, 0.0, 0.0, float(readings[0].text.settings.greedy))
        made = np.zeros((*on_XSG.shape, len(SCALARS)), np.float32)
        for position in range(starts.depth):
            one = numbers_of(*(np.nan_to_num(values[..., position].astype(float)) for values in numbers))
            proposed_XS = lookup_XSG[..., position] == token_XSG[..., position]
            for place, values in enumerate(course.add(one, proposed_XS)):
                made[..., position, place] = values
        return SurvivalGrid(starts, made)

    def at(self, prices: Prices) -> "SurvivalGrid":
        """The same texts at other prices."""
        return replace(self, starts=replace(self.starts, prices=prices))

    def features(
        self, reading_V: np.ndarray, start_V: np.ndarray, rejected_V: np.ndarray, luck_V: np.ndarray
    ) -> np.ndarray:
        """Of the chains from some roots [V, G, F]."""
        made = self.known_XSGF[reading_V, start_V].astype(np.float64)
        made[..., REJECTED], made[..., LUCK] = rejected_V[:, None], luck_V[:, None]
        return made

    def would(self, walk: Walk) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that would be accepted, and the most that can be drafted, at every round [V]."""
        cells = walk.reading_V, walk.start_V
        return self.starts.would_XS[cells], self.starts.cap_XS[cells]

    def static(self, length: int) -> Walk:
        """Rounds of always ``length`` tokens."""
        return Walk.of(self.starts, self.chains(length))

    def chains(self, length: int) -> Draft:
        """Those of so many tokens."""
        cap_XS = self.starts.cap_XS

        def draft(reading_V: np.ndarray, start_V: np.ndarray, *_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.minimum(cap_XS[reading_V, start_V], length), np.zeros_like(start_V)

        return draft

    def totals(self, walk: Walk, question: float) -> Totals:
        """What its rounds take."""
        made_3XS1 = np.zeros((3, *self.starts.cap_XS.shape, 1), np.int64)
        made_3XS1[:, walk.reading_V, walk.start_V, 0] = walk.submitted_V, walk.looked_up_V, walk.asked_V
        submitted, looked_up, asked = made_3XS1
        drafts: Drafts = drafts_of(submitted, submitted - looked_up, asked, looked_up_XSM=looked_up)
        return decoded(self.starts, drafts, question)


def _everywhere(values_N: np.ndarray, slots_NG: np.ndarray) -> np.ndarray:
    """A text's number at all slots of its row."""
    return np.broadcast_to(values_N[:, None], slots_NG.shape)
