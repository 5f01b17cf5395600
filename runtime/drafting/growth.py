"""A drafted tree while it grows on the host."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from predictors.signals import NextLaw
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
