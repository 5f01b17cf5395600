"""Parts of all self-drafting: guesses fed alongside the text for the model to extend, and earlier continuations to verify.

    guesses      rows under the newest token; each pass predicts what would follow each of them
    candidates   tokens that followed the newest token in earlier guesses: a tree to verify in the same pass

Candidates are a function of earlier passes alone, so they are there before the token they are compared with is drawn, which is
all that losslessness needs (specification of drafting, section 6). Pools hold the continuations of a token as a trie:

    M(T, T'):   for each child v' of T':  where T has a child of the same token, merge below it; else graft v' with all below it

Source: Progressive Tree Drafting, section 3.2; the printed formula adds v' without its descendants (specification of drafting,
section 6.2). Shape suffixes: R rows of guesses, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from runtime.request import Request
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree

Trie: TypeAlias = dict[int, "Trie"]  # what follows, by token, in the order it was first seen


@dataclass(frozen=True)
class GuessRows:
    """Guessed ``tokens`` with their ``parents`` among them, earlier ones (-1: the newest token); ``depth``: the longest path."""

    tokens: list[int]
    parents: list[int]
    depth: int


NO_ROWS = GuessRows([], [], 0)


@dataclass(frozen=True)
class PassOutcome:
    """Result of one pass over candidates and guesses, as tokens.

    ``newest`` is the token it ran after and ``candidates`` were verified; ``predicted`` holds the target's most likely token
    after ``newest`` and then after every candidate, level by level (-1: it has none; empty where nobody reads it).
    ``following`` holds a token after each of the rows that were fed, and ``committed`` what the pass added to the text.
    """

    newest: int
    candidates: Trie
    predicted: Sequence[int]
    following: Sequence[int]
    committed: Sequence[int]


class Guesses(ABC):
    """Guesses of one request, and a pool of what followed. ``reads_predictions``: whether it reads what a pass ``predicted``."""

    reads_predictions = False
    _pool: "TriePool | NGramPool"  # bounded memory of what followed every token

    @abstractmethod
    def rows(self) -> GuessRows:
        """Return the guesses to feed in the coming pass."""

    @abstractmethod
    def learn(self, said: PassOutcome) -> None:
        """Grow the guesses by a pass, and remember its continuations."""

    def candidates(self, newest: int) -> Trie:
        """Return the continuations that followed ``newest`` before; not to be changed."""
        return self._pool.get(newest)

    def follow(self, logits_RV: Tensor) -> list[int]:
        """Guess the token after each row: by default the most likely one."""
        following: list[int] = logits_RV.argmax(dim=-1).tolist()
        return following


class Guesser(Protocol):
    """Configuration of a self-drafting method."""

    def open(self, request: Request) -> Guesses:
        """Open one request's guesses, begun from its prompt, with a source of chance that is their own."""


class PromptTokens:
    """Draws tokens of a request's prompt at random, to begin guesses with; no end of sequence, if it has others."""

    def __init__(self, request: Request) -> None:
        self._prompt = [token for token in request.prompt if token not in request.eos_tokens] or request.prompt
        self._chance = request.randomness

    def draw(self, count: int) -> list[int]:
        """Draw ``count`` tokens uniformly."""
        places = self._chance.categorical(torch.ones(count, len(self._prompt)))
        return [self._prompt[place] for place in places.tolist()]

    def length(self, longest: int) -> int:
        """Draw a length uniformly from 1 .. ``longest``."""
        return 1 + int(self._chance.categorical(torch.ones(longest)))


def levels(trie: Trie, deepest: int, ends: Container[int] = ()) -> TokenTree:
    """Return the first ``deepest`` levels of ``trie`` as a tree to verify, level by level; nothing after a token of ``ends``."""
    tokens: list[int] = []
    parents: list[int] = []
    level = [(-1, trie)]
    for _ in range(deepest):
        below = []
        for parent, children in level:
            for token, deeper in children.items():
                below.append((len(tokens), {} if token in ends else deeper))
                tokens.append(token)
                parents.append(parent)
        level = below
    if not tokens:
        return EMPTY_TREE
    return TokenTree(tokens=torch.tensor(tokens), parents=torch.tensor(parents), law=DraftLaw.DETERMINISTIC)


def merge(trie: Trie, other: Trie) -> int:
    """Merge a copy of ``other`` into ``trie``; return the number of nodes added."""
    added = 0
    for token, below in other.items():
        own = trie.get(token)
        if own is None:
            own = trie[token] = {}
            added += 1
        added += merge(own, below)
    return added


def num_nodes(trie: Trie) -> int:
    """Count the nodes of ``trie``, its root not counted."""
    return sum(1 + num_nodes(below) for below in trie.values())


class TriePool:
    """Continuations of every token, at most ``capacity`` nodes each; the oldest first token and all below it go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tries: dict[int, Trie] = {}
        self._sizes: dict[int, int] = {}

    def get(self, token: int) -> Trie:
        return self._tries.get(token, {})

    def merge(self, token: int, continuations: Trie) -> None:
        """Remember that ``continuations`` followed ``token``."""
        trie = self._tries.setdefault(token, {})
        size = self._sizes.get(token, 0) + merge(trie, continuations)
        while size > self._capacity:
            oldest = next(iter(trie))
            size -= 1 + num_nodes(trie.pop(oldest))
        self._sizes[token] = size


class NGramPool:
    """N-grams by first token, at most ``capacity`` of each; the one not seen for longest goes first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tails: dict[int, OrderedDict[tuple[int, ...], None]] = {}

    def get(self, token: int) -> Trie:
        """Return the n-grams that begin with ``token``, without it; those that share a beginning share its nodes."""
        trie: Trie = {}
        for tail in self._tails.get(token, ()):
            below = trie
            for following in tail:
                below = below.setdefault(following, {})
        return trie

    def add(self, ngrams: Iterable[Sequence[int]]) -> None:
        """Remember n-grams, the newest last."""
        for first, *tail in ngrams:
            tails = self._tails.setdefault(first, OrderedDict())
            tails[tuple(tail)] = None
            tails.move_to_end(tuple(tail))
            if len(tails) > self._capacity:
                tails.popitem(last=False)
