"""What ``survival`` reads of a chain as it grows: numbers of the draft's distributions, a lookup's agreement, and past rounds.

    token g       logs of the largest probability and of the drawn token's, at temperature 1
    so far        sums of the logs, and the token before
    lookup        length of the root's match, grown by every drafted token that it would have proposed; where they parted
    past          whether the last round ended by a rejection; luck <- DECAY luck + (1 - DECAY) [accepted] over tested tokens

Source: the stop models of MCSD and SpecDec++ (specification of drafting, sections 5.5 and 7.5), over inputs of our own.
"""

import math
from typing import Any

import numpy as np

from predictors.signals import LEAST_LOG, TokenNumbers

TOKEN = ("log_top", "log_own", "sum_log_top", "sum_log_own", "previous_log_top")
LOOKUP = ("agrees", "agreed_length", "parted_length", "parted")
ROOT = ("found", "match", "rejected", "luck", "greedy")
# `TOKEN` stands first: the squared distance is of those alone, as all others are bounded.
SCALARS = (*TOKEN, "position", "log_position", *LOOKUP, *ROOT)
REJECTED, LUCK = SCALARS.index("rejected"), SCALARS.index("luck")
DECAY = 0.8
FIRST_LUCK = 0.7  # before any token was tested
LOG_OF = np.log1p(np.arange(2048))  # of small counts


class Course:
    """Arrays of drafts, from roots where matches of ``match`` tokens were found (0: none); ``rejected`` and ``luck`` are of past
    rounds, ``greedy``: at temperature 0. `predictors.survival.network.HostCourse` adds up the same for one draft."""

    def __init__(self, match: Any, rejected: Any, luck: Any, greedy: float) -> None:
        self.agrees: Any = 1.0 * (match > 0)
        self._root = (self.agrees, LOG_OF[match], rejected, luck, greedy)
        self._match = match
        self._drafted = 0
        self._sums: tuple[Any, Any] = (0.0, 0.0)
        self._previous: Any = 0.0

    def add(self, token: TokenNumbers, proposed: Any) -> list[Any]:
        """Features after one more ``token``; ``proposed``: whether it is the lookup's next one."""
        found, log_match, *past = self._root
        position = self._drafted
        self.agrees = agrees = self.agrees * proposed
        parted = found - agrees
        sum_top, sum_own = self._sums[0] + token.log_top, self._sums[1] + token.log_own
        features = [*token, sum_top, sum_own, self._previous, position, LOG_OF[position]]
        features += [agrees, agrees * LOG_OF[self._match + position + 1], parted * log_match, parted]
        self._drafted, self._sums, self._previous = position + 1, (sum_top, sum_own), token.log_top
        return [*features, found, log_match, *past]


def luck_after(luck: Any, accepted: Any, rejected: Any) -> Any:
    """``luck`` after a round of so many ``accepted`` tokens, the next one ``rejected`` or not tested."""
    kept = DECAY**accepted
    return (luck * kept + 1 - kept) * (1 - (1 - DECAY) * rejected)


def numbers_of(confidence: Any, own: Any) -> TokenNumbers:
    """From probabilities, recorded ones among them."""
    return TokenNumbers(*(np.log(np.maximum(one, math.exp(LEAST_LOG))) for one in (confidence, own)))
