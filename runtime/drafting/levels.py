"""Trees grown level by level: one draft pass per level over all nodes that are extended.

Whether a node is extended, and into how many draws, is settled before any of them is drawn; a drawn child is never removed,
sorted or replaced. Nodes lie in level order, so every level is one block and the topology mask of the tree cut after any level is
a slice of the whole tree's. Shape suffixes: E extended nodes of a level, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from predictors.controllers import Session
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.clock import PhaseClock
from runtime.drafting.draft import ModelDraft
from runtime.drafting.drafted import ROOT, Drafted, DraftedTree, Growth, UnreadTree
from runtime.drafting.sampler import read_rows
from runtime.tree import DraftLaw


class LevelDraft(ModelDraft):
    """Grows a tree; subclasses say how a level is drawn and what ``law`` that makes under the request's settings."""

    law: DraftLaw
    _unread: UnreadTree | None = None  # the round's tree, if it grew so

    @abstractmethod
    def _draw_unread(self, depth: int, laws: Sequence[NextLaw]) -> Tensor:
        """Tokens drawn, in order, under each node of a level, or each copy of one, from its own law, in rows
        (`runtime.drafting.sampler`)."""

    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        """The same on the host; ``copies`` of the nodes (the root: 1), which a drafter that merges nodes draws for each."""
        assert all(count == 1 for count in copies), "who merges nodes says how their copies are drawn"
        return read_rows(self._draw_unread(depth, laws))

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Grow up to ``cap`` levels. A node is not extended where the session says so or after an end-of-sequence token."""
        if cap and not self._sampler.reads and not session.stops:
            self._unread = self._grow_unread(cap, root, session, clock)
            return self._unread
        growth = Growth()
        self._grow(growth, [ROOT], cap, root, session, clock)
        drafted = DraftedTree(growth.tree(self.law), growth.drawn_from)
        clock.lap("draft")
        return drafted

    def commit(self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int]) -> None:
        """As in `ModelDraft`; of a node with several copies, that one's rows are kept which the path's last one hangs under."""
        if self._unread is not None:
            fed = self._unread.drafted_behind(path)
            self._scratch = dict(zip(fed, self._unread.places(fed), strict=True))
            self._unread = None
        super().commit(path, accepted, newest)

    def _grow(
        self, growth: Growth, level: Sequence[int], limit: int, root: Root, session: Session, clock: PhaseClock
    ) -> None:
        """Extend the nodes of ``level`` by ``limit`` levels at most."""
        depth = 0
        while level and depth < limit:
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
            depth += 1

    def _grow_unread(self, cap: int, root: Root, session: Session, clock: PhaseClock) -> UnreadTree:
        """The same for a session that stops nowhere: nothing is read."""
        rows = [self._feed_uncached()]
        tree, depth, limit = UnreadTree(rows[0][0].device, self.law, self._eos_tokens), 0, cap
        while depth < limit:
            copies = tree.copies
            if depth:
                rows = self._feed(copies.numbers, copies.tokens, copies.parents)
            probs_EV = self._sampler.law(torch.stack([logits_V for logits_V, _ in rows]))[copies.first]
            laws = [
                NextLaw(root, self._settings, depth, logits_V, probs_V, hidden_KD)
                for (logits_V, hidden_KD), probs_V in zip(rows, probs_EV, strict=True)
            ]
            clock.lap("draft")
            if not depth:
                limit = self._choose(laws[0], session, limit)
                clock.lap("controller")
            tree.draw(laws, self._draw_unread(depth, laws))
            depth += 1
        tree.close()
        clock.lap("draft")
        return tree

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
