"""What both halves of a branch-parallel request say every round: a verdict goes out, a block and then branches come back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictors.rounds import Forecast
from predictors.signals import NextLaw
from runtime.branching.candidates import Candidates
from runtime.clock import Stretch
from runtime.tree import TokenTree


@dataclass(frozen=True)
class Verdict:
    """What became of a round: the ``accepted`` pending tokens, the ``newest`` token behind them, and the branch that it is in."""

    accepted: Sequence[int]
    newest: int
    branch: int | None = None


@dataclass(frozen=True)
class Pending:
    """The block that the target verifies next: a ``tree`` that is a chain. ``levels`` were drafted for it with the target idle,
    ``trimmed`` ones dropped from the branch that survived; ``laws`` only for observers; ``forecasts`` are the controller's.
    ``passes`` of the draft and questions ``asked`` led to it."""

    tree: TokenTree
    levels: int = 0
    trimmed: int = 0
    bypassed: bool = False
    laws: list[NextLaw] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    forecasts: tuple[Forecast, ...] = ()
    passes: int = 0
    asked: int = 0


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
