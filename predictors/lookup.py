"""Prompt lookup: what followed the last time that the text said what it says now. A draft from it takes no model.

    match(i)         = the longest n <= most with tokens[i-n+1 .. i] = tokens[j-n+1 .. j] for some j < i; of equals the latest j
    continuation(i)  = tokens[j+1 ..]

Source: Saxena, Prompt Lookup Decoding, 2023; specification of drafting, section on baselines. Shape suffix: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Match:
    """``length`` tokens that occurred before (0: none), and ``start``, where what followed them begins."""

    length: int
    start: int


def longest_matches(tokens: Sequence[int], most: int) -> list[Match]:
    """At every position the longest match of the tokens up to it, of at most ``most``."""
    if most < 1:
        raise ValueError(f"most must be >= 1, got {most}: a match of no tokens says nothing.")
    tokens_T = np.asarray(tokens)
    common_T = np.zeros(
        0, dtype=np.int64
    )  # tokens that the text up to here has in common with the text up to each earlier place
    matches = []
    for end in range(len(tokens_T)):
        shifted_T = np.concatenate([[0], common_T])[:end]
        common_T = np.where(tokens_T[:end] == tokens_T[end], np.minimum(shifted_T + 1, most), 0)
        found = end - 1 - int(common_T[::-1].argmax()) if end and common_T.any() else -1
        matches.append(Match(int(common_T[found]), found + 1) if found >= 0 else Match(0, end + 1))
    return matches
