"""Multi-candidate trees: level l gives every node ``config[l]`` distinct children (MCSD's k-configurations and fork trees).

Sampled children are drawn one after the other without replacement and kept in that order; ``candidates="top_k"``, and every
greedy draft, takes the most likely ones instead. ``fork(width, depth)`` is the configuration (width, 1, 1, …): chains that
part at the root and never again. Source: Lu et al. 2024, section 4; specification of drafting, section 5. Shape suffixes:
E extended nodes of a level, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from predictors.config import Count, NotNegative, one_of
from predictors.controllers import Session
from predictors.signals import NextLaw, Root
from runtime.adapter import LanguageModel
from runtime.clock import PhaseClock
from runtime.drafting.draft import Drafter
from runtime.drafting.drafted import ROOT, Growth
from runtime.drafting.levels import LevelDraft, stacked
from runtime.drafting.sampler import most_likely, read_rows
from runtime.request import Request
from runtime.tree import DraftLaw, TokenTree

CANDIDATES = ("sampled", "top_k")
ROOTS = ("draft", "target")


@dataclass(frozen=True)
class MultiCandidateConfig(Drafter):
    """``config``: children per node, level by level. ``candidates``: ``sampled`` or ``top_k``; ``draft_temperature`` as in
    `ChainConfig`.

    ``roots="target"``: the first number counts tokens drawn from the target's own law as roots, and the root with the longest
    accepted subtree wins. One root is the ordinary tree of the other numbers; several are lossy at every temperature, because
    tokens with predictable continuations come out too often (specification of drafting, section 5.4).
    """

    config: tuple[Count, ...] = (4, 2, 2, 1)
    candidates: Annotated[str, one_of(*CANDIDATES)] = "sampled"
    roots: Annotated[str, one_of(*ROOTS)] = "draft"
    draft_temperature: NotNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths:
            raise ValueError(f"config needs a number per level, for example [4, 2, 2, 1], got {list(self.config)}.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Children per node on the levels that the draft draws."""
        return self.config if self.roots == "draft" else self.config[1:]

    @property
    def target_roots(self) -> int:
        """Tokens drawn from the target per round; more than one compete."""
        return 1 if self.roots == "draft" else self.config[0]

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
class ForkConfig(Drafter):
    """``width`` chains of ``depth`` tokens; ``candidates`` and ``draft_temperature`` as in `MultiCandidateConfig`."""

    width: Count = 16
    depth: Count = 5
    candidates: Annotated[str, one_of(*CANDIDATES)] = "sampled"
    draft_temperature: NotNegative | None = None

    @property
    def levels(self) -> MultiCandidateConfig:
        """The same tree as a k-configuration."""
        config = (self.width, *[1] * (self.depth - 1))
        return MultiCandidateConfig(config, self.candidates, draft_temperature=self.draft_temperature)

    @property
    def laws(self) -> frozenset[DraftLaw]:
        return self.levels.laws

    @property
    def branches(self) -> bool:
        return self.levels.branches

    def open(self, model: LanguageModel, request: Request) -> "MultiCandidateDraft":
        return self.levels.open(model, request)


class MultiCandidateDraft(LevelDraft):
    """Draws distinct children."""

    def __init__(self, config: MultiCandidateConfig, model: LanguageModel, request: Request) -> None:
        super().__init__(model, request, config.draft_temperature)
        likeliest = self._settings.greedy or config.candidates == "top_k"
        self.law = DraftLaw.DETERMINISTIC if likeliest else DraftLaw.WITHOUT_REPLACEMENT
        self._widths = config.widths

    def draft_under(self, roots: Sequence[int], root: Root, cap: int, session: Session, clock: PhaseClock) -> TokenTree:
        """Grow up to ``cap`` levels under ``roots``, tokens that the target drew: the tree's first level."""
        if self._uncached:
            self._feed_uncached()
        growth = Growth()
        level = [growth.draw(ROOT, token) for token in roots]
        going = [node for node in level if growth.tokens[node] not in self._eos_tokens]
        if going:
            self._grow(growth, going, cap, root, session, clock)
        tree = growth.tree(self.law if growth.laws else DraftLaw.DETERMINISTIC)
        clock.lap("draft")
        return tree

    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        return read_rows(self._draw_unread(depth, laws))

    def _draw_unread(self, depth: int, laws: Sequence[NextLaw]) -> Tensor:
        if self.law is DraftLaw.DETERMINISTIC:
            return most_likely(torch.stack([law.logits_V for law in laws]), self._widths[depth])
        return self._sampler.distinct(stacked(laws), self._widths[depth])
