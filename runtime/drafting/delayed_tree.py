"""Delayed trees: a trunk of one path, then i.i.d. rollouts from its end (specification of verification, section 7).

The trunk's end is drawn from k times; a node below it as often as rollouts come through it. ``l1 = 0`` is the ordinary multi-path
tree. At temperature 0 all rollouts are the draft's argmax and the tree is a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from predictors.signals import NextLaw
from runtime.adapter import LanguageModel
from runtime.drafting.draft import require_temperature
from runtime.drafting.levels import LevelDraft, stacked
from runtime.randomness import Chance
from runtime.request import Request
from runtime.tree import DraftLaw


@dataclass(frozen=True)
class DelayedTreeConfig:
    """``k`` rollouts of ``l2`` tokens after a trunk of ``l1`` tokens. ``draft_temperature`` as in `ChainConfig`."""

    k: int = 3
    l1: int = 1
    l2: int = 3
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.k < 1 or self.l1 < 0 or self.l2 < 0 or self.l1 + self.l2 < 1:
            raise ValueError(
                f"a delayed tree needs k >= 1, l1 >= 0, l2 >= 0 and l1 + l2 >= 1, got k={self.k}, l1={self.l1}, l2={self.l2}."
            )
        require_temperature(self.draft_temperature)

    @property
    def depth(self) -> int:
        return self.l1 + self.l2

    @property
    def laws(self) -> frozenset[DraftLaw]:
        return frozenset({DraftLaw.IID})

    @property
    def branches(self) -> bool:
        return self.k > 1 and self.l2 > 0

    def open(
        self, model: LanguageModel, vocabulary_size: int, request: Request, randomness: Chance
    ) -> "DelayedTreeDraft":
        return DelayedTreeDraft(self, model, vocabulary_size, request, randomness)


class DelayedTreeDraft(LevelDraft):
    """Draws i.i.d. rollouts and merges what they share."""

    law = DraftLaw.IID

    def __init__(
        self,
        config: DelayedTreeConfig,
        model: LanguageModel,
        vocabulary_size: int,
        request: Request,
        randomness: Chance,
    ) -> None:
        super().__init__(model, vocabulary_size, request, config.draft_temperature, randomness)
        self._config = config

    def _draw(self, depth: int, laws: Sequence[NextLaw], copies: Sequence[int]) -> list[list[int]]:
        counts = [self._config.k if depth == self._config.l1 else count for count in copies]
        probs_EV = stacked(laws)
        if self._settings.greedy:
            best: list[int] = probs_EV.argmax(-1).tolist()
            return [[token] * count for token, count in zip(best, counts, strict=True)]
        repeated = probs_EV.repeat_interleave(torch.tensor(counts, device=probs_EV.device), dim=0)
        tokens = iter(self._randomness.categorical(repeated).tolist())
        return [[next(tokens) for _ in range(count)] for count in counts]
