"""What both halves of a branch-parallel request say every round: a verdict goes out, a block and then branches come back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictors.rounds import RoundRecord
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
    """The block that the target verifies next: a ``tree`` that is a chain; ``laws`` only for observers. ``record``: the draft's
    part of the round's up to here. Its levels were drafted with the target idle."""

    tree: TokenTree
    record: RoundRecord = field(default_factory=RoundRecord)
    laws: list[NextLaw] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)


@dataclass(frozen=True)
class Branches:
    """What was drafted beside the target: ``candidates`` at the branch point (``None``: there is none). ``record``: the draft's
    whole part of the round's; ``None``: that of the block, as nothing else came of drafting beside the target."""

    candidates: Candidates | None = None
    record: RoundRecord | None = None
    stretches: list[Stretch] = field(default_factory=list)


NO_BRANCHES = Branches()
