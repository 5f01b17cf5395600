"""What a head predicts of the next γ drafted tokens, of which A are accepted.

classes   none (A = 0), some, or all of them (A >= γ)      H-RAD
length    min(A, γ)                                       the explicit length predictor: γ + 1 ordered classes
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictors.network import CLASSES
from predictors.training.label_table import LabelTable
from predictors.training.labels import label_of

CLASS, LENGTH = TARGETS = ("classes", "length")


@dataclass(frozen=True)
class Target:
    """``name``: one of `TARGETS`. ``gamma``: the tokens it speaks of.

    Examples
    --------
    >>> Target("length", gamma=3).of(np.array([0, 1, 3, 8])).tolist()
    [0, 1, 3, 3]
    """

    name: str
    gamma: int

    def __post_init__(self) -> None:
        if self.name not in TARGETS:
            raise ValueError(f"unknown target {self.name!r}; known: {', '.join(TARGETS)}.")

    @property
    def ordered(self) -> bool:
        """Whether a class is a number of tokens."""
        return self.name == LENGTH

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the head's classes."""
        return tuple(str(length) for length in range(self.gamma + 1)) if self.ordered else CLASSES

    def of(self, accepted_N: np.ndarray) -> np.ndarray:
        """Classes [N] int64 of accepted counts."""
        found = accepted_N.clip(0, self.gamma) if self.ordered else label_of(accepted_N, self.gamma)
        return found.astype(np.int64)

    def labels(self, table: LabelTable) -> Tensor:
        """Classes [N] int64 of a table's rows."""
        return torch.from_numpy(self.of(table.accepted))
