"""Prompt lookup: what followed the last time that the text ended as it ends now. A draft from it takes no model.

    match           the longest n <= longest with tokens[i-n+1 .. i] = tokens[j-n+1 .. j] for some j < i; of equals the latest j
    continuation    tokens[j+1 ..]
    seen, agreed    earlier occurrences of the last min(match, CONTEXT) tokens, and those that went on as the continuation does

All tokens lie in a trie of depth ``longest``: the node of the last n tokens hangs, by the newest one, under what was the
node of the last n - 1 a token ago. So a token takes ``longest`` look-ups and entries of a hash table at most (of 16 entries: 2
KB). Source: Saxena, Prompt Lookup Decoding, 2023; specification of drafting, section on baselines.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, at_least, at_most

LONGEST = 16  # tokens: longer matches tell no more
CONTEXT = 3  # tokens whose earlier continuations are counted


@dataclass(frozen=True)
class LookupSettings(Checked):
    """Settings of a lookup: at most ``length`` tokens after a match of ``least`` to ``longest`` tokens."""

    length: Count = 10
    longest: Annotated[int, at_least(1), at_most(1024)] = LONGEST
    least: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.longest:
            raise ValueError(
                f"least={self.least} is more than longest={self.longest}: nothing would be found. Lower it."
            )


@dataclass(frozen=True)
class Found:
    """Result of a lookup: a match of ``length`` tokens, and the ``tokens`` that followed it; of ``seen`` earlier occurrences of
    its last tokens ``agreed`` went on with the first of them."""

    length: int
    tokens: tuple[int, ...]
    seen: int
    agreed: int


NOTHING = Found(0, (), 0, 0)


class Lookup:
    """Index of a request's prompt and output, token by token. Matches have at most ``longest`` tokens.

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
        self._depth = max(longest, CONTEXT + 1)
        self._children: dict[tuple[int, int], int] = {}  # nodes by the node above and the token
        self._ends, self._counts = [0], [0]  # of each node: where it occurred last, and how often
        self._nodes = [0]  # of the last 0, 1, … tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """Add ``tokens`` after those known."""
        children, ends, counts = self._children, self._ends, self._counts
        for token in tokens:
            self.tokens.append(token)
            end, above, self._nodes = len(self.tokens), self._nodes[: self._depth], [0]
            self._length, self._start = 0, end
            for length, node_above in enumerate(above, start=1):
                node = children.setdefault((node_above, token), len(ends))
                if node == len(ends):
                    ends.append(end)
                    counts.append(1)
                else:
                    if length <= self.longest:
                        self._length, self._start = length, ends[node]
                    ends[node] = end
                    counts[node] += 1
                self._nodes.append(node)

    def found(self, most: int) -> Found:
        """Find the match of the last tokens, with at most ``most`` tokens of its continuation."""
        if not self._length:
            return NOTHING
        node, token = self._nodes[min(self._length, CONTEXT)], self.tokens[self._start]
        following = tuple(self.tokens[self._start : self._start + most])
        return Found(self._length, following, self._counts[node] - 1, self._counts[self._children[node, token]])


def founds(tokens: Iterable[int], most: int, longest: int = LONGEST) -> list[Found]:
    """Run `Lookup.found` after every token."""
    lookup, made = Lookup(longest), []
    for token in tokens:
        lookup.extend([token])
        made.append(lookup.found(most))
    return made
