"""Trees grown level by level: one draft pass per level over all nodes that are extended.

Whether a node is extended, and into how many draws, is settled before any of them is drawn; a drawn child is never removed,
sorted or replaced. Nodes lie in level order, so every level is one block and the topology mask of the tree cut after any level is
a slice of the whole tree's. Shape suffixes: E extended nodes of a level, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.controllers import Session
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.clock import PhaseClock
from runtime.drafting.draft import Draft
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree

ROOT = -1


@dataclass
class Growth:
    """A tree while it grows. ``copies`` counts how often each node was drawn; ``laws`` holds the law of each extended node."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)
    laws: dict[int, NextLaw] = field(default_factory=dict)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def draw(self, parent: int, token: int) -> int:
        """Record a draw of ``token`` under ``parent``; equal siblings are one node."""
        node = self._known.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
            self.copies.append(0)
        self.draws.append(node)
        self.copies[node] += 1
        return node

    def tree(self, law: DraftLaw) -> TokenTree:
        """The finished tree."""
        if not self.tokens:
            return EMPTY_TREE
        return TokenTree(
            tokens=torch.tensor(self.tokens),
            parents=torch.tensor(self.parents),
            draws=torch.tensor(self.draws),
            draft_probs=None if law is DraftLaw.DETERMINISTIC else self._draft_probs(),
            law=law,
        )

    def _draft_probs(self) -> Tensor:
        none_V = torch.zeros_like(next(iter(self.laws.values())).probs_V)
        return torch.stack(
            [self.laws[node].probs_V if node in self.laws else none_V for node in range(ROOT, len(self.tokens))]
        )


class LevelDraft(Draft):
    """Grows a tree; subclasses say how a level is drawn and what ``law`` that makes under the request's settings."""

    law: DraftLaw

    @abstractmethod
    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        """Tokens drawn, in order, under each node of a level; ``copies`` of the nodes (the root: 1)."""

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> tuple[TokenTree, list[NextLaw]]:
        """Grow up to ``cap`` levels. A node is not extended where the session says so or after an end-of-sequence token."""
        growth = Growth()
        self._grow(growth, [ROOT], range(cap), root, session, clock)
        tree = growth.tree(self.law)
        clock.lap("draft")
        return tree, [growth.laws[parent] for parent in growth.parents]

    def _grow(
        self,
        growth: Growth,
        level: Sequence[int],
        depths: range,
        root: Root,
        session: Session,
        clock: PhaseClock,
    ) -> None:
        """Extend the nodes of ``level`` by one level per depth."""
        limit = depths.stop
        for depth in depths:
            if depth >= limit:
                break
            laws = self._laws(root, depth, level, growth)
            clock.lap("draft")
            if level == [ROOT]:
                limit = self._choose(laws[0], session, limit)
            going = [place for place, stops in enumerate(session.stops_before(laws)) if not stops]
            clock.lap("controller")
            if not going:
                break
            level, laws = [level[place] for place in going], [laws[place] for place in going]
            copies = [1 if node == ROOT else growth.copies[node] for node in level]
            drawn = self._draw(depth, laws, copies)
            growth.laws |= dict(zip(level, laws, strict=True))
            nodes = [growth.draw(node, token) for node, some in zip(level, drawn, strict=True) for token in some]
            clock.lap("draft")
            level = [node for node in dict.fromkeys(nodes) if not self._ends(node, growth, session)]
            clock.lap("controller")
            if not level:
                break

    def _choose(self, law: NextLaw, session: Session, limit: int) -> int:
        """The levels to draft once the law at the root is known, at most ``limit``."""
        return limit

    def _laws(self, root: Root, depth: int, level: Sequence[int], growth: Growth) -> list[NextLaw]:
        if level == [ROOT]:
            return [self._law(root, 0, self._feed_uncached())]
        tokens = torch.tensor([growth.tokens[node] for node in level])
        rows = self._feed(level, tokens, [growth.parents[node] for node in level])
        return [self._law(root, depth, row) for row in rows]

    def _ends(self, node: int, growth: Growth, session: Session) -> bool:
        token = growth.tokens[node]
        drawn = DrawnToken(growth.laws[growth.parents[node]], torch.tensor(token))
        return bool(session.stop_after(drawn)) or token in self._eos_tokens


def stacked(laws: Sequence[NextLaw]) -> Tensor:
    """Processed laws [E, V] of a level."""
    return torch.stack([law.probs_V for law in laws])
