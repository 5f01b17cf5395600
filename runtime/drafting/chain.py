"""Chain drafting: one token after the other, up to γ, stopped by the controller. Shape suffix: V vocabulary.

A chain is a tree whose levels have one node, but its loop is its own: tokens and laws stay on their device, where the loop over
levels takes tokens through the host (docs/tried.md has the cost).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.config import Count, NotNegative
from predictors.controllers import Session
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.adapter import LanguageModel, Row
from runtime.clock import PhaseClock
from runtime.drafting.draft import Draft, Drafter, ModelDraft
from runtime.drafting.drafted import Drafted, DraftedTree
from runtime.drafting.lookup import LookupConfig, LookupDraft
from runtime.request import Request
from runtime.tree import EMPTY_TREE, TokenTree, chain_tree


@dataclass(frozen=True)
class ChainConfig(Drafter):
    """``gamma``: most tokens per round. ``draft_temperature``: ``None`` drafts at the target's temperature and filters.
    ``lookup``: what a controller may draft instead of the chain, or before it."""

    gamma: Count = 5
    draft_temperature: NotNegative | None = None
    lookup: LookupConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lookup is not None and self.lookup.length > self.gamma:
            raise ValueError(
                f"lookup.length={self.lookup.length} is more than gamma={self.gamma}, the most tokens of a round. Use gamma >= "
                f"{self.lookup.length}, and a controller that keeps the model's own chain shorter."
            )

    @property
    def depth(self) -> int:
        return self.gamma

    def open(self, model: LanguageModel, request: Request) -> Draft:
        chain = ChainDraft(model, request, self.draft_temperature)
        return chain if self.lookup is None else MixedDraft(self.lookup, chain, model.device, request)


@dataclass
class Chain:
    """Drawn ``tokens`` (0-d) and the laws they come from; ``next_law`` is the law that the controller stopped at, if it did.
    ``looked_up`` tokens go before them, which nobody drew."""

    tokens: list[Tensor] = field(default_factory=list)
    laws: list[NextLaw] = field(default_factory=list)
    next_law: NextLaw | None = None
    looked_up: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.looked_up) + len(self.tokens)

    def tree(self) -> TokenTree:
        """The chain as a tree."""
        if not self.tokens:
            return EMPTY_TREE
        rows = [law.probs_V for law in self.laws]
        return chain_tree(torch.stack(self.tokens), torch.stack([*rows, torch.zeros_like(rows[0])]))


class ChainDraft(ModelDraft):
    """Draws a chain; at temperature 0 its laws are one-hot."""

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw up to ``cap`` tokens; ends early where the session says so, and after an end-of-sequence token if looking at one
        waits for no device (what follows it is verified and cut from the output)."""
        chain = self._draw_chain(root, cap, session, clock)
        drafted = DraftedTree(chain.tree(), chain.laws)
        clock.lap("draft")
        return drafted

    def draw_after(self, tokens: Sequence[int], root: Root, count: int, clock: PhaseClock) -> Chain:
        """Draw ``count`` tokens after ``tokens``, fewer only after an end-of-sequence token."""
        return self._draw_chain(root, len(tokens) + count, Session(), clock, tokens)

    def _draw_chain(
        self, root: Root, cap: int, session: Session, clock: PhaseClock, looked_up: Sequence[int] = ()
    ) -> Chain:
        chain = Chain(looked_up=looked_up)
        while len(chain) < cap:
            law = self._law(root, len(chain), self._next_row(chain))
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

    def _next_row(self, chain: Chain) -> Row:
        """The row after the chain's last token; a round's first pass catches up with all before it."""
        if not chain.tokens:
            return self._feed_uncached(chain.looked_up)
        node = len(chain) - 1
        return self._feed([node], chain.tokens[-1].reshape(1), [node - 1])[0]


class MixedDraft(LookupDraft):
    """A model's chain, the tokens of a lookup, or these and a chain after them. In a round without a drawn token the model does
    nothing; the next one that draws begins with a pass over all that it has not read."""

    def __init__(self, config: LookupConfig, chain: ChainDraft, device: torch.device, request: Request) -> None:
        super().__init__(config, device, request)
        self._model = chain

    @property
    def passes(self) -> int:
        return self._model.passes

    def prefill(self, prompt: list[int], newest: Sequence[int]) -> None:
        super().prefill(prompt, newest)
        self._model.prefill(prompt, newest)

    def commit(self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int]) -> None:
        super().commit(path, accepted, newest)
        self._model.commit(path, accepted, newest)

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw the model's own chain."""
        return self._model.draft(root, cap, session, clock)

    def _drawn(
        self, root: Root, tokens: Sequence[int], count: int, clock: PhaseClock
    ) -> tuple[Sequence[Tensor], list[NextLaw]]:
        chain = self._model.draw_after(tokens, root, count, clock)
        return chain.tokens, chain.laws
