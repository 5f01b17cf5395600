"""Prompt lookup: what followed the last time that the text said what it says now. A draft from it takes no model.

    match           the longest n <= longest with tokens[i-n+1 .. i] = tokens[j-n+1 .. j] for some j < i; of equals the latest j
    continuation    tokens[j+1 ..]
    seen, agreed    earlier occurrences of the last min(match, CONTEXT) tokens, and those that went on as the continuation does

A token takes at most ``longest`` look-ups and entries of a hash table. Source: Saxena, Prompt Lookup Decoding, 2023;
specification of drafting, section on baselines.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LONGEST = 16  # tokens: longer matches say no more
CONTEXT = 3  # tokens whose earlier continuations are counted


@dataclass(frozen=True)
class Found:
    """A match of ``length`` tokens, and the ``tokens`` that followed it; of ``seen`` earlier occurrences of its last tokens
    ``agreed`` went on with the first of them."""

    length: int
    tokens: tuple[int, ...]
    seen: int
    agreed: int


NOTHING = Found(0, (), 0, 0)


class Lookup:
    """Prompt and output of one request, token by token. Matches have at most ``longest`` tokens.

    Examples
    --------
    >>> lookup = Lookup()
    >>> lookup.extend([5, 6, 7, 8, 5, 6])
    >>> lookup.found(3)
    Found(length=2, tokens=(7, 8, 5), seen=1, agreed=1)
    """

    def __init__(self, longest: int = LONGEST) -> None:
        if longest < 1:
            raise ValueError(f"longest must be >= 1, got {longest}: a match of no tokens says nothing.")
        self.longest = longest
        self.tokens: list[int] = []
        self._length, self._start = 0, 0  # of the match, and where what followed it begins
        self._after: dict[tuple[int, ...], int] = {}  # where what followed the latest occurrence begins
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}  # how often which token followed

    def extend(self, tokens: Iterable[int]) -> None:
        """Add ``tokens`` behind those known."""
        for token in tokens:
            self._add(token)

    def found(self, most: int) -> Found:
        """The match of the last tokens, with at most ``most`` tokens of its continuation."""
        if not self._length:
            return NOTHING
        counts = self._followers.get(tuple(self.tokens[-min(self._length, CONTEXT) :]), {})
        following = tuple(self.tokens[self._start : self._start + most])
        return Found(self._length, following, sum(counts.values()), counts.get(self.tokens[self._start], 0))

    def _add(self, token: int) -> None:
        tokens = self.tokens
        for length in range(1, min(CONTEXT, len(tokens)) + 1):
            counts = self._followers.setdefault(tuple(tokens[-length:]), {})
            counts[token] = counts.get(token, 0) + 1
        tokens.append(token)
        end = len(tokens)
        grams = [tuple(tokens[end - length :]) for length in range(1, min(self.longest, end) + 1)]
        most = min(self._length + 1, len(grams))  # a longer match would have been one a token ago
        self._length = next((length for length in range(most, 0, -1) if grams[length - 1] in self._after), 0)
        self._start = self._after[grams[self._length - 1]] if self._length else end
        self._after.update(dict.fromkeys(grams, end))


def founds(tokens: Iterable[int], most: int, longest: int = LONGEST) -> list[Found]:
    """`Lookup.found` after every token."""
    lookup, made = Lookup(longest), []
    for token in tokens:
        lookup.extend([token])
        made.append(lookup.found(most))
    return made
