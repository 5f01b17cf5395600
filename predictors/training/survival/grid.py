"""Features of every chain that could be drafted along recorded texts, and decodes of a survival model there, in arrays.

    rows that a policy meets    rounds follow from its decisions, and what it knows of past rounds from them
    features                    `predictors.survival.features`, the same lines that are served

Shape suffixes: X readings, S starts, G positions of a chain, F features, V rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from predictors.replay.grid import Columns, Drafts, Path, Starts, Totals
from predictors.replay.prices import Prices
from predictors.survival.features import FIRST_LUCK, LUCK, REJECTED, SCALARS, Course, luck_after, numbers_of

# from readings, starts, and of past chains whether the last was rejected, and luck [V]: how many tokens of a chain to draft, and
# queries asked [V]
Chain = Callable[..., Columns]
# from the same: another source's tokens in all, those of them that were looked up, queries, and whether it takes over [V]
Source = Callable[..., Columns]


@dataclass(frozen=True)
class SurvivalGrid:
    """``starts`` at one sampling setting, with the features of every chain from each but for those that follow from past rounds,
    ``known_XSGF``."""

    starts: Starts
    known_XSGF: np.ndarray

    @staticmethod
    def of(starts: Starts) -> "SurvivalGrid":
        """With its features."""
        columns = [one.text.columns for one in starts.readings]
        own_XSG, token_XSG = starts.drawn("unit_probability", "unit_probabilities"), starts.drawn("token", "tokens")
        numbers = (starts.column("confidence"), own_XSG)
        match_XS, lookup_XSG = (starts.by_start([one[name] for one in columns]) for name in ("match", "lookup"))
        course = Course(match_XS, 0.0, 0.0, float(starts.readings[0].text.settings.greedy))
        made = np.zeros((*own_XSG.shape, len(SCALARS)), np.float32)
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

    def path(self, chain: Chain, source: Source | None = None) -> Path:
        """Rounds that draft a ``chain`` where no ``source`` takes over, with what is known of past chains before each."""

        def draft(*round_V: np.ndarray) -> Columns:
            chain_V, asked_V = chain(*round_V)
            if source is None:
                none_V = np.zeros_like(chain_V)
                return chain_V, none_V, asked_V, none_V > 0
            submitted_V, looked_up_V, queries_V, takes_V = source(*round_V)
            asked_V = np.where(takes_V, 0, asked_V) + queries_V
            return np.where(takes_V, submitted_V, chain_V), np.where(takes_V, looked_up_V, 0), asked_V, takes_V

        def after(places: Columns, drafted: Columns, accepted_V: np.ndarray) -> Columns:
            (*_, rejected_V, luck_V), (submitted_V, *_, takes_V) = places, drafted
            now_V = (accepted_V < submitted_V).astype(float)
            later_V = luck_after(luck_V, accepted_V, now_V)
            return np.where(takes_V, rejected_V, now_V), np.where(takes_V, luck_V, later_V)

        return Path.of(self.starts, draft, after, 0.0, FIRST_LUCK)

    def static(self, length: int) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Rounds of always ``length`` tokens: readings, starts and what is known there; tokens that would be accepted [V, 1], and
        the most that can be drafted [V, 1]."""
        places = self.path(self.chains(length)).places
        return places, self.starts.would_XS[places[:2]][:, None], self.starts.cap_XS[places[:2]][:, None]

    def chains(self, length: int) -> Chain:
        """Those of so many tokens."""
        cap_XS = self.starts.cap_XS

        def chain(reading_V: np.ndarray, start_V: np.ndarray, *_: np.ndarray) -> Columns:
            return np.minimum(cap_XS[reading_V, start_V], length), np.zeros_like(start_V)

        return chain

    def totals(self, path: Path, question: float) -> Totals:
        """What its rounds take."""
        submitted_V, looked_up_V, asked_V, _ = path.drafted
        drafts = Drafts.of(submitted_V, submitted_V - looked_up_V, asked_V, looked_up=looked_up_V)
        return self.starts.decoded(path, drafts, question)
