"""Drafts from what the text said before: tokens of a lookup, at no model cost.

    looked up    x_1 … x_n = what followed the longest match of the text's end        q one-hot
    drawn        x_{n+1} … ~ the draft model after them                               q its distribution

Which tokens are looked up, and how many are drawn after them, is settled before the round draws anything. So the draft is an
i.i.d. chain whatever its source, and a verifier of chains stays lossless. No lookup cuts or replaces a chain that was drawn.
Source: `predictors.lookup`. Shape suffixes: N looked-up tokens, R rows of the chain, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from predictors.config import Count, at_least, at_most
from predictors.controllers import Session
from predictors.controllers.base import Sourced
from predictors.lookup import LONGEST, NOTHING, Found, Lookup
from predictors.signals import NextLaw, Root
from runtime.adapter import LanguageModel
from runtime.clock import PhaseClock
from runtime.device import on_device
from runtime.drafting.draft import Draft, Drafter
from runtime.drafting.drafted import Drafted, DraftedTree
from runtime.randomness import note
from runtime.request import Request, until_end
from runtime.tree import EMPTY_TREE, chain_tree


@dataclass(frozen=True)
class LookupConfig(Drafter):
    """At most ``length`` tokens after a match of at most ``longest``; a match of fewer than ``least`` tokens counts as none."""

    length: Count = 10
    longest: Annotated[int, at_least(1), at_most(1024)] = LONGEST
    least: Count = 1

    needs_draft = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.longest:
            raise ValueError(
                f"least={self.least} is more than longest={self.longest}: nothing would be found. Lower it."
            )

    @property
    def depth(self) -> int:
        return self.length

    def open(self, model: LanguageModel, request: Request) -> "LookupDraft":
        return LookupDraft(self, model.device, request)


class LookupDraft(Draft):
    """One request's text so far, and drafts that a lookup begins. Without a model it drafts nothing else."""

    def __init__(self, config: LookupConfig, device: torch.device, request: Request) -> None:
        self._config = config
        self._device = device
        self._vocabulary_size = request.vocabulary_size
        self._eos_tokens = request.eos_tokens
        self._randomness = request.randomness
        self._text = Lookup(config.longest)
        self._unread: list[int] = []  # committed since the last look-up, and not counted before somebody looks up

    def prefill(self, prompt: list[int], newest: Sequence[int]) -> None:
        self._unread += [*prompt, *newest]

    def commit(self, path: Sequence[int], accepted: Sequence[int], newest: Sequence[int]) -> None:
        self._unread += [*accepted, *newest]

    def found(self) -> Found:
        """What followed the text's end before."""
        self._text.extend(self._unread)
        self._unread = []
        found = self._text.found(self._config.length)
        return found if found.length >= self._config.least else NOTHING

    def draft(self, root: Root, cap: int, session: Session, clock: PhaseClock) -> Drafted:
        """Draft what was found, up to ``cap`` tokens."""
        root = root if root.found is not None else replace(root, found=self.found())
        return self.follow(root, Sourced(cap), cap, clock)

    def follow(self, root: Root, sourced: Sourced, cap: int, clock: PhaseClock) -> Drafted:
        """Draft what ``sourced`` says of ``root.found``, ``cap`` tokens at most. An end-of-sequence token ends the draft."""
        assert root.found is not None and sourced.looked_up >= 0 and sourced.drawn >= 0
        tokens = until_end(root.found.tokens[: min(sourced.looked_up, cap)], self._eos_tokens)
        note(self._randomness, tokens)
        ended = bool(tokens) and tokens[-1] in self._eos_tokens
        drawn, laws = self._drawn(root, tokens, 0 if ended else min(sourced.drawn, cap - len(tokens)), clock)
        drafted = self._chain(tokens, drawn, laws)
        clock.lap("draft")
        return drafted

    def _drawn(
        self, root: Root, tokens: Sequence[int], count: int, clock: PhaseClock
    ) -> tuple[Sequence[Tensor], list[NextLaw]]:
        """Up to ``count`` tokens (0-d) drawn after ``tokens``, and the distributions that they come from."""
        if count:
            raise ValueError(
                f"the controller wants {count} drawn tokens after a lookup, and drafter 'lookup' has no draft model. Use "
                'drafter {"kind": "chain", "lookup": {…}}.'
            )
        return [], []

    def _chain(self, tokens: Sequence[int], drawn: Sequence[Tensor], laws: list[NextLaw]) -> DraftedTree:
        if not tokens and not drawn:
            return DraftedTree(EMPTY_TREE, [])
        tokens_N = on_device(tokens, self._device)
        certain_NV = torch.zeros(len(tokens), self._vocabulary_size, device=self._device)
        certain_NV.scatter_(1, tokens_N.unsqueeze(1), 1.0)
        rows = [law.probs_V.unsqueeze(0) for law in laws]
        probs_RV = torch.cat([certain_NV, *rows, certain_NV.new_zeros(1, self._vocabulary_size)])
        tree = chain_tree(torch.cat([tokens_N, *(token.reshape(1) for token in drawn)]), probs_RV)
        return DraftedTree(tree, laws, looked_up=len(tokens))
