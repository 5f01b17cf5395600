"""Delayed trees: a trunk of one path, then i.i.d. rollouts from its end (specification of verification, section 7).

The trunk's end is drawn from k times; a node below it as often as rollouts come through it. ``l1 = 0`` is the ordinary multi-path
tree. At temperature 0 all rollouts are the draft's argmax and the tree is a chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.actions import Action
from predictors.config import NotNegative
from predictors.controllers import Session
from predictors.signals import NextLaw
from runtime.adapter import LanguageModel
from runtime.device import on_device
from runtime.drafting.draft import Drafter
from runtime.drafting.levels import LevelDraft, stacked
from runtime.request import Request
from runtime.tree import DraftLaw


@dataclass(frozen=True)
class DelayedTreeConfig(Drafter):
    """``k`` rollouts of ``l2`` tokens after a trunk of ``l1`` tokens. ``draft_temperature`` as in `ChainConfig`. ``choices``: the
    trees that the controller drafts instead, if it chooses."""

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
    """Draws i.i.d. rollouts and merges what they share."""

    law = DraftLaw.IID

    def __init__(self, config: DelayedTreeConfig, model: LanguageModel, request: Request) -> None:
        super().__init__(model, request, config.draft_temperature)
        self._action = config.action
        self._chooses = bool(config.choices)

    def _choose(self, law: NextLaw, session: Session, limit: int) -> int:
        if self._chooses:
            self._action = session.tree(self._tree_root(law))
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
