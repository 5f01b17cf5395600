"""Chains: one token after the other, up to γ, stopped by the controller; and tokens of a lookup in the text, at no model cost.

    looked up    x_1 … x_n = what followed the longest match of the text's end        q one-hot
    drawn        x_{n+1} … ~ the draft model after them                               q its distribution

Which tokens are looked up, and how many are drawn after them, is settled before the round draws anything. So the draft is an
i.i.d. chain whatever its source, and a verifier of chains stays lossless. No lookup cuts or replaces a chain that was drawn.

A chain is a tree whose levels have one node, but its loop is its own: tokens and distributions stay on their device, where the
loop over levels takes tokens through the host (docs/tried.md has the cost).

Where tokens are read off and not drawn (temperature 0, invariant sampling), any tree under any rule is lossless, and a chain may
have leaves: beside a level's token the next likeliest of its distribution. A leaf takes a row of the target's pass and no pass of
the draft; it gains a token where the chain fails at its level and it is right. Tokens of a lookup may go in beside all of them, a
path of their own as far as it parts from theirs. Source: caterpillar trees of the specification.

Shape suffixes: N looked-up tokens, R rows of the chain, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import torch
from torch import Tensor

from predictors.config import Count, NotNegative, Whole
from predictors.controllers import Session
from predictors.controllers.base import Sourced
from predictors.lookup import NOTHING, Found, Lookup, LookupSettings
from predictors.signals import DrawnToken, NextLaw, Root
from runtime.adapter import LanguageModel, Row
from runtime.device import PhaseClock, on_device
from runtime.drafting.draft import Draft, Drafter, ModelDraft
from runtime.drafting.drafted import ROOT, Drafted, DraftedTree, Growth
from runtime.drafting.sampler import most_likely, read_rows
from runtime.randomness import note
from runtime.request import Request, until_end
from runtime.tree import EMPTY_TREE, DraftLaw, TokenTree, chain_tree


@dataclass(frozen=True)
class LookupConfig(LookupSettings, Drafter):
    """Drafts what a lookup found (`LookupSettings`); in a `ChainConfig` instead of the chain, or before it."""

    needs_draft = False

    @property
    def depth(self) -> int:
        return self.length

    def open(self, model: LanguageModel, request: Request) -> "LookupDraft":
        return LookupDraft(self, model.device, request)


@dataclass(frozen=True)
class ChainConfig(Drafter):
    """Chains of at most ``gamma`` tokens per round. ``draft_temperature``: ``None`` drafts at the target's temperature and
    filters. ``lookup``: what a controller may draft instead of the chain, or before it. ``leaves``: the most leaves beside the
    token of each level; above temperature 0 there are some only in invariant sampling."""

    gamma: Count = 5
    draft_temperature: NotNegative | None = None
    lookup: LookupConfig | None = None
    leaves: tuple[Whole, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.leaves) > self.gamma:
            raise ValueError(f"leaves={list(self.leaves)} name more levels than gamma={self.gamma} has. Raise gamma.")
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
        if any(self.leaves) and request.settings.greedy:
            chain = LeafedDraft(model, request, self.draft_temperature, self.leaves)
        return chain if self.lookup is None else LookupDraft(self.lookup, model.device, request, chain)


@dataclass
class Chain:
    """A drafted chain: drawn ``tokens`` (0-d), the distributions they come from, and ``next_law``, where the controller stopped,
    if it did. ``looked_up`` tokens go before them undrawn. ``silent``: it ends where the draft has no distribution."""

    tokens: list[Tensor] = field(default_factory=list)
    laws: list[NextLaw] = field(default_factory=list)
    next_law: NextLaw | None = None
    looked_up: Sequence[int] = ()
    silent: bool = False

    def __len__(self) -> int:
        return len(self.looked_up) + len(self.tokens)

    def tree(self) -> TokenTree:
        if not self.tokens:
            return EMPTY_TREE
        rows = [law.probs_V for law in self.laws]
        return chain_tree(torch.stack(self.tokens), torch.stack([*rows, torch.zeros_like(rows[0])]))


class ChainDraft(ModelDraft):
    """Draws a chain; at temperature 0 its distributions are one-hot."""

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw up to ``cap`` tokens; ends early where the session stops it, and after an end-of-sequence token if looking at one
        waits for no device (what follows it is verified and cut from the output)."""
        chain = self.draw(root, cap, session, clock)
        drafted = DraftedTree(chain.tree(), chain.laws)
        clock.lap("draft")
        return drafted

    def draw(self, root: Root, cap: int, session: Session, clock: PhaseClock, looked_up: Sequence[int] = ()) -> Chain:
        """Draw a chain of up to ``cap`` tokens, beginning with those ``looked_up``, which count; it ends early as in `draft`."""
        chain = Chain(looked_up=looked_up)
        while len(chain) < cap:
            law = self._law(root, len(chain), self._next_row(chain))
            clock.lap("draft")
            if any(self._silent[-1:]):
                chain.silent = True
                break
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
        """Return the row after the chain's last token; a round's first pass catches up with all before it."""
        if not chain.tokens:
            return self._feed_uncached(chain.looked_up)
        node = len(chain) - 1
        return self._feed([node], chain.tokens[-1].reshape(1), [node - 1])[0]


class LeafedDraft(ChainDraft):
    """Draws a chain, then chooses leaves. A token of the chain is the node of its level's number; leaves come after them all, and
    then what a lookup found, as far as it is none of them."""

    def __init__(
        self, model: LanguageModel, request: Request, draft_temperature: float | None, leaves: Sequence[int]
    ) -> None:
        super().__init__(model, request, draft_temperature)
        self._leaves = leaves

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        chain = self.draw(root, cap, session, clock)
        widths = session.widths(chain.laws)
        clock.lap("controller")
        if widths is None:
            widths = [1 + count for count in (*self._leaves, *[0] * len(chain))[: len(chain)]]
        found: Sequence[int] = ()
        if root.found is not None and root.found.length:
            found = until_end(root.found.tokens[: min(session.beside(root), cap)], self._eos_tokens)
        drafted = self._leafed(chain, list(takewhile(bool, widths)), found)
        clock.lap("draft")
        return drafted

    def _leafed(self, chain: Chain, widths: Sequence[int], found: Sequence[int]) -> DraftedTree:
        """Make the tree of the first ``widths[d]`` candidates of each level, the chain's own token the first, and of what was
        ``found``."""
        growth, laws = Growth(), []
        own = until_end([int(token) for token in chain.tokens[: len(widths)]], self._eos_tokens)
        self._scratch = {node: place for node, place in self._scratch.items() if node < len(own)}
        _grow(growth, own)
        laws += chain.laws[: len(own)]
        widths = widths[: len(own)]
        if max(widths, default=0) > 1:
            best = read_rows(most_likely(torch.stack([law.logits_V for law in laws]), max(widths)))
            for level, (tokens, token, width) in enumerate(zip(best, own, widths, strict=True)):
                for other in [one for one in tokens if one != token][: width - 1]:
                    growth.draw(level - 1, other)
                    laws.append(laws[level])
        _grow(growth, found)
        if not growth.tokens:
            return DraftedTree(EMPTY_TREE, [])
        return DraftedTree(
            TokenTree(torch.tensor(growth.tokens), torch.tensor(growth.parents), law=DraftLaw.DETERMINISTIC), laws
        )


def _grow(growth: Growth, path: Sequence[int]) -> None:
    """Put a ``path`` of tokens under the root, where it is not there yet."""
    above = ROOT
    for token in path:
        above = growth.draw(above, token)


class LookupDraft(Draft):
    """Text of one request so far, and drafts that a lookup begins; a ``model`` draws what comes after them, or a chain of its
    own. In a round without a drawn token the model does nothing; the next one that draws begins with a pass over all that it has
    not read."""

    def __init__(
        self, config: LookupConfig, device: torch.device, request: Request, model: ChainDraft | None = None
    ) -> None:
        self._config = config
        self._device = device
        self._model = model
        self._vocabulary_size = request.vocabulary_size
        self._eos_tokens = request.eos_tokens
        self._randomness = request.randomness
        self._text = Lookup(config.longest)
        self._unread: list[int] = []  # committed since the last look-up, and not counted before somebody looks up

    @property
    def passes(self) -> int:
        return 0 if self._model is None else self._model.passes

    def prefill(self, prompt: list[int], newest: Sequence[int], hidden_NKD: Tensor | None = None) -> None:
        self._unread += [*prompt, *newest]
        if self._model is not None:
            self._model.prefill(prompt, newest, hidden_NKD)

    def commit(
        self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int], hidden_NKD: Tensor | None = None
    ) -> None:
        self._unread += [*accepted, *newest]
        if self._model is not None:
            self._model.commit(path, accepted, newest, hidden_NKD)

    def found(self) -> Found:
        """Look up what followed earlier occurrences of the text's end."""
        self._text.extend(self._unread)
        self._unread = []
        found = self._text.found(self._config.length)
        return found if found.length >= self._config.least else NOTHING

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draw the model's own chain; without a model draft what was found, up to ``cap`` tokens."""
        if self._model is not None:
            return self._model.draft(root, cap, session, clock)
        root = root if root.found is not None else replace(root, found=self.found())
        return self.follow(root, Sourced(cap), cap, clock)

    def follow(self, root: Root, sourced: Sourced, cap: int, clock: PhaseClock) -> Drafted:
        """Draft what ``sourced`` takes of ``root.found``, ``cap`` tokens at most. An end-of-sequence token ends the draft."""
        assert root.found is not None and sourced.looked_up >= 0 and sourced.drawn >= 0
        tokens = until_end(root.found.tokens[: min(sourced.looked_up, cap)], self._eos_tokens)
        note(self._randomness, tokens)
        ended = bool(tokens) and tokens[-1] in self._eos_tokens
        count = 0 if ended else min(sourced.drawn, cap - len(tokens))
        chain = Chain(looked_up=tokens)
        if self._model is not None:
            chain = self._model.draw(root, len(tokens) + count, Session(), clock, tokens)
        elif count:
            raise ValueError(
                f"the controller wants {count} drawn tokens after a lookup, and drafter 'lookup' has no draft model. Use "
                'drafter {"kind": "chain", "lookup": {…}}.'
            )
        drafted = self._drafted(chain)
        clock.lap("draft")
        return drafted

    def _drafted(self, chain: Chain) -> DraftedTree:
        if not len(chain):
            return DraftedTree(EMPTY_TREE, [])
        tokens_N = on_device(chain.looked_up, self._device)
        certain_NV = torch.zeros(len(tokens_N), self._vocabulary_size, device=self._device)
        certain_NV.scatter_(1, tokens_N.unsqueeze(1), 1.0)
        rows = [law.probs_V.unsqueeze(0) for law in chain.laws]
        probs_RV = torch.cat([certain_NV, *rows, certain_NV.new_zeros(1, self._vocabulary_size)])
        tree = chain_tree(torch.cat([tokens_N, *(token.reshape(1) for token in chain.tokens)]), probs_RV)
        return DraftedTree(tree, chain.laws, looked_up=len(tokens_N))
