"""Trees by drafter, grown level by level: one draft pass per level over all nodes that are extended.

Whether a node is extended, and into how many draws, is settled before any of them is drawn; a drawn child is never removed,
sorted or replaced. Nodes lie in level order.

Delayed trees: a trunk of one path, then i.i.d. rollouts from its end (specification of verification, section 7). The trunk's end
is drawn from k times; a node below it as often as rollouts come through it. ``l1 = 0`` is the ordinary multi-path tree. At
temperature 0 all rollouts are the draft's argmax and the tree is a chain.

Multi-candidate trees: level l gives every node ``config[l]`` distinct children (MCSD's k-configurations and fork trees). Sampled
children are drawn one after the other without replacement and kept in that order; ``candidates="top_k"``, and every greedy
draft, takes the most likely ones instead. ``fork(width, depth)`` is the configuration (width, 1, 1, …): chains that part at the
root and never again. Source: Lu et al. 2024, section 4; specification of drafting, section 5.

Shape suffixes: E extended nodes of a level, V vocabulary.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.config import Count, NotNegative, one_of
from predictors.controllers import Session
from predictors.signals import DrawnToken, NextLaw, Root, TreeRoot
from runtime.adapter import LanguageModel
from runtime.device import PhaseClock, on_device
from runtime.drafting.draft import Drafter, ModelDraft
from runtime.drafting.drafted import ROOT, Drafted, DraftedTree, Growth, UnreadTree
from runtime.drafting.sampler import most_likely, read_rows
from runtime.request import Request
from runtime.tree import DraftLaw


class LevelDraft(ModelDraft):
    """Draft that grows a tree; subclasses define how a level is drawn, and by which ``law`` under the request's settings."""

    law: DraftLaw
    _unread: UnreadTree | None = None  # the round's tree, if it grew so

    @abstractmethod
    def _draw_unread(self, depth: int, laws: Sequence[NextLaw]) -> Tensor:
        """Draw tokens, in order, under each node of a level, or each copy of one, from its own distribution, in rows
        (`runtime.drafting.sampler`)."""

    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        """Draw a level on the host; ``copies`` of the nodes (the root: 1), which a drafter that merges nodes draws for each."""
        assert all(count == 1 for count in copies), "who merges nodes says how their copies are drawn"
        return read_rows(self._draw_unread(depth, laws))

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Grow up to ``cap`` levels. A node is not extended where the session stops it or after an end-of-sequence token."""
        if cap and not self._sampler.reads and not session.stops:
            self._unread = self._grow_unread(cap, root, session, clock)
            return self._unread
        growth = Growth()
        self._grow(growth, [ROOT], cap, root, session, clock)
        drafted = DraftedTree(growth.tree(self.law), growth.drawn_from)
        clock.lap("draft")
        return drafted

    def commit(
        self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int], hidden_NKD: Tensor | None = None
    ) -> None:
        """Keep the accepted nodes' cache rows; of a node's copies, those of the one that the path's last node hangs under."""
        if self._unread is not None:
            fed = self._unread.drafted_behind(path)
            self._scratch = dict(zip(fed, self._unread.places(fed), strict=True))
            self._unread = None
        super().commit(path, accepted, newest, hidden_NKD)

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
            stops, silent = session.stops_before(laws), self._silent[-len(laws) :] or [False] * len(laws)
            going = [place for place in range(len(laws)) if not stops[place] and not silent[place]]
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
        """Grow a tree for a session that stops nowhere: nothing is read."""
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
        """Return the levels to draft, at most ``limit``, once the distribution at the root is known."""
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
    """Stack the processed distributions [E, V] of a level."""
    return torch.stack([law.probs_V for law in laws])


CandidateKind = Annotated[str, one_of("sampled", "top_k")]


@dataclass(frozen=True)
class DelayedTreeConfig(Drafter):
    """Delayed trees: ``k`` rollouts of ``l2`` tokens after a trunk of ``l1``. ``draft_temperature`` as in `ChainConfig`.
    ``choices``: the trees that the controller drafts instead, if it chooses."""

    k: int = 3
    l1: int = 1
    l2: int = 3
    draft_temperature: NotNegative | None = None
    choices: tuple[Action, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.action

    @property
    def action(self) -> Action:
        return Action(self.k, self.l1, self.l2)

    @property
    def depth(self) -> int:
        return max(action.depth for action in (self.action, *self.choices))

    @property
    def branches(self) -> bool:
        return not all(action.is_chain for action in (self.action, *self.choices))

    def open(self, model: LanguageModel, request: Request) -> "DelayedTreeDraft":
        return DelayedTreeDraft(self, model, request)


class DelayedTreeDraft(LevelDraft):
    """Draws i.i.d. rollouts after a trunk and merges what they share."""

    law = DraftLaw.IID

    def __init__(self, config: DelayedTreeConfig, model: LanguageModel, request: Request) -> None:
        super().__init__(model, request, config.draft_temperature)
        self._action = config.action
        self._chooses = bool(config.choices)

    def _choose(self, law: NextLaw, session: Session, limit: int) -> int:
        if self._chooses:
            self._action = session.tree(TreeRoot(law, partial(self._both_models, law.root)))
        return min(limit, self._action.depth)

    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        counts = [self._action.k if self._branches(depth) else count for count in copies]
        probs_EV = stacked(laws)
        if self._settings.greedy:
            best: list[int] = probs_EV.argmax(-1).tolist()
            return [[token] * count for token, count in zip(best, counts, strict=True)]
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        repeated = probs_EV[on_device(places, probs_EV.device)]
        tokens = iter(self._randomness.categorical(repeated).tolist())
        return [[next(tokens) for _ in range(count)] for count in counts]

    def _draw_unread(self, depth: int, laws: Sequence[NextLaw]) -> Tensor:
        branches = self._branches(depth) and not self._settings.greedy  # greedy rollouts are all one
        width = self._action.k if branches else 1
        tokens = self._sampler.token(stacked(laws).repeat_interleave(width, dim=0))
        return torch.nn.functional.pad(tokens.view(-1, width), (0, 1), value=width)

    def _branches(self, depth: int) -> bool:
        return depth == self._action.l1 and not self._action.is_chain


class CandidateTree(Drafter):
    """Trees of distinct children, which are ``sampled`` or ``top_k``; ``draft_temperature`` as in `ChainConfig`."""

    candidates: str
    draft_temperature: float | None

    @property
    @abstractmethod
    def widths(self) -> tuple[int, ...]:
        """Children per node on the levels that the draft draws."""

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def laws(self) -> frozenset[DraftLaw]:
        sampled = {DraftLaw.WITHOUT_REPLACEMENT} if self.candidates == "sampled" else set()
        return frozenset({DraftLaw.DETERMINISTIC, *sampled})

    @property
    def branches(self) -> bool:
        return max(self.widths) > 1

    def open(self, model: LanguageModel, request: Request) -> "MultiCandidateDraft":
        return MultiCandidateDraft(self, model, request)


@dataclass(frozen=True)
class MultiCandidateConfig(CandidateTree):
    """Multi-candidate trees: ``config`` gives the children per node, level by level."""

    config: tuple[Count, ...] = (4, 2, 2, 1)
    candidates: CandidateKind = "sampled"
    draft_temperature: NotNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.config:
            raise ValueError(f"config needs a number per level, for example [4, 2, 2, 1], got {list(self.config)}.")

    @property
    def widths(self) -> tuple[int, ...]:
        return self.config


@dataclass(frozen=True)
class ForkConfig(CandidateTree):
    """Fork trees: ``width`` chains of ``depth`` tokens; ``candidates`` and ``draft_temperature`` as in `CandidateTree`."""

    width: Count = 16
    depth: Count = 5
    candidates: CandidateKind = "sampled"
    draft_temperature: NotNegative | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width, *[1] * (self.depth - 1))


class MultiCandidateDraft(LevelDraft):
    """Draws a tree of distinct children."""

    def __init__(self, config: CandidateTree, model: LanguageModel, request: Request) -> None:
        super().__init__(model, request, config.draft_temperature)
        likeliest = self._settings.greedy or config.candidates == "top_k"
        self.law = DraftLaw.DETERMINISTIC if likeliest else DraftLaw.WITHOUT_REPLACEMENT
        self._widths = config.widths

    def _draw_unread(self, depth: int, laws: Sequence[NextLaw]) -> Tensor:
        if self.law is DraftLaw.DETERMINISTIC:
            return most_likely(torch.stack([law.logits_V for law in laws]), self._widths[depth])
        return self._sampler.distinct(stacked(laws), self._widths[depth])
