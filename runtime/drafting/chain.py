"""Chain drafting: one token after the other, up to γ, stopped by the controller. Shape suffix: V vocabulary.

A chain is a tree whose levels have one node, but its loop is its own: tokens and laws stay on their device, where the loop over
levels takes tokens through the host (docs/tried.md has the cost).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.config import Checked, Count, NotNegative
from predictors.controllers import Session
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.adapter import LanguageModel
from runtime.clock import PhaseClock
from runtime.drafting.draft import Draft
from runtime.drafting.drafted import Drafted, DraftedTree
from runtime.drafting.views import Row
from runtime.randomness import Chance
from runtime.request import Request
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, chain_tree


@dataclass(frozen=True)
class ChainConfig(Checked):
    """``gamma``: most tokens per round. ``draft_temperature``: ``None`` drafts at the target's temperature and filters."""

    gamma: Count = 5
    draft_temperature: NotNegative | None = None

    @property
    def depth(self) -> int:
        return self.gamma

    @property
    def laws(self) -> frozenset[DraftLaw]:
        return frozenset({DraftLaw.IID})

    @property
    def branches(self) -> bool:
        return False

    def open(self, model: LanguageModel, vocabulary_size: int, request: Request, randomness: Chance) -> "ChainDraft":
        return ChainDraft(model, vocabulary_size, request, self.draft_temperature, randomness)


@dataclass
class Chain:
    """Drawn ``tokens`` (0-d) and the laws they come from; ``next_law`` is the law that the controller stopped at, if it did."""

    tokens: list[Tensor] = field(default_factory=list)
    laws: list[NextLaw] = field(default_factory=list)
    next_law: NextLaw | None = None

    def tree(self) -> TokenTree:
        """The chain as a tree."""
        if not self.tokens:
            return EMPTY_TREE
        rows = [law.probs_V for law in self.laws]
        return chain_tree(torch.stack(self.tokens), torch.stack([*rows, torch.zeros_like(rows[0])]))


class ChainDraft(Draft):
    """Draws a chain; at temperature 0 its laws are one-hot."""

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw up to ``cap`` tokens; ends early where the session says so, and after an end-of-sequence token if looking at one
        waits for no device (what follows it is verified and cut from the output)."""
        chain = self._draw_chain(root, cap, session, clock)
        drafted = DraftedTree(chain.tree(), chain.laws)
        clock.lap("draft")
        return drafted

    def _draw_chain(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Chain:
        chain = Chain()
        while len(chain.tokens) < cap:
            law = self._law(root, len(chain.tokens), self._next_row(chain.tokens))
            clock.lap("draft")
            stop = bool(session.stop_before(law))
            clock.lap("controller")
            if stop:
                chain.next_law = law
                break
            token = self._sampler.token(law.probs_V)
            chain.tokens.append(token)
            chain.laws.append(law)
            ended = self._sampler.reads and int(token) in self._eos_tokens
            clock.lap("draft")
            stop = bool(session.stop_after(DrawnToken(law, token)))
            clock.lap("controller")
            if stop or ended:
                break
        return chain

    def _next_row(self, tokens: list[Tensor]) -> Row:
        if not tokens:
            return self._feed_uncached()
        node = len(tokens) - 1
        return self._feed([node], tokens[-1].reshape(1), [node - 1])[0]
