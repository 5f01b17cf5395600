"""Continuations of a token as a trie, and bounded pools of them by the token that they follow.

    M(T, T'):   for each child v' of T':  where T has a child of the same token, merge below it; else graft v' with all below it

Source: Progressive Tree Drafting, section 3.2; the printed formula adds v' without its descendants (specification of drafting,
section 6.2).
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from typing import TypeAlias

import torch

from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree

Trie: TypeAlias = dict[int, "Trie"]  # what follows, by token, in the order it was first seen


def levels(trie: Trie, deepest: int, ends: Container[int] = ()) -> TokenTree:
    """The first ``deepest`` levels of ``trie`` as a tree to verify, level by level; nothing behind a token of ``ends``."""
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
    """Merge a copy of ``other`` into ``trie``; the number of nodes added."""
    added = 0
    for token, below in other.items():
        own = trie.get(token)
        if own is None:
            own = trie[token] = {}
            added += 1
        added += merge(own, below)
    return added


def num_nodes(trie: Trie) -> int:
    """Nodes of ``trie``, its root not counted."""
    return sum(1 + num_nodes(below) for below in trie.values())


class TriePool:
    """Continuations of every token, at most ``capacity`` nodes each; the oldest first token and all behind it go first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tries: dict[int, Trie] = {}
        self._sizes: dict[int, int] = {}

    def get(self, token: int) -> Trie:
        """What followed ``token``."""
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
        """N-grams that begin with ``token``, without it; those that share a beginning share its nodes."""
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
