"""What both halves of a branch-parallel request say every round: a verdict goes out, a block and then branches come back.

Shape suffixes: V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from predictors.rounds import Forecast
from predictors.signals import NextLaw
from runtime.branching.candidates import Candidates
from runtime.clock import Stretch
from runtime.tree import EMPTY_TREE, TokenTree, chain_tree


@dataclass(frozen=True)
class Verdict:
    """What became of a round: the ``accepted`` pending tokens, the ``newest`` token behind them, and the branch that it is in."""

    accepted: Sequence[int]
    newest: int
    branch: int | None = None


@dataclass(frozen=True)
class Pending:
    """The block that the target verifies next: ``tokens`` [m] int64 and the laws [m, V] they were drawn from. ``levels`` were
    drafted for it with the target idle, ``trimmed`` ones dropped from the branch that survived; ``laws`` only for observers;
    ``forecasts`` are the controller's. ``passes`` of the draft and questions ``asked`` led to it."""

    tokens: Tensor
    draft_probs: Tensor
    levels: int
    trimmed: int
    bypassed: bool
    laws: list[NextLaw]
    stretches: list[Stretch]
    forecasts: tuple[Forecast, ...] = ()
    passes: int = 0
    asked: int = 0

    @cached_property
    def tree(self) -> TokenTree:
        """The block as a tree to verify."""
        if not len(self.tokens):
            return EMPTY_TREE
        return chain_tree(self.tokens, torch.cat([self.draft_probs, torch.zeros_like(self.draft_probs[:1])]))


@dataclass(frozen=True)
class Branches:
    """What was drafted beside the target: ``candidates`` at the branch point (``None``: there is none), ``levels`` of draft steps
    and ``drafted`` tokens. ``law_known``: the law at the branch point was there before. ``passes`` of the draft and questions
    ``asked`` are those beside the target."""

    candidates: Candidates | None = None
    levels: int = 0
    drafted: int = 0
    law_known: bool = False
    stretches: list[Stretch] = field(default_factory=list)
    passes: int = 0
    asked: int = 0


NO_BRANCHES = Branches()
