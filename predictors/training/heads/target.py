"""What a head predicts of the next γ drafted tokens, of which A are accepted.

classes   none (A = 0), some, or all of them (A >= γ)      H-RAD
length    min(A, γ)                                       the explicit length predictor: γ + 1 ordered classes

Given a text A has a distribution, P(A >= n) = reached_n. Shape suffixes: N roots, G tokens, L classes.
"""

from dataclasses import dataclass

import numpy as np

from predictors.network import CLASSES
from predictors.training.labelling.chains import class_of

CLASS, LENGTH = TARGETS = ("classes", "length")


@dataclass(frozen=True)
class Target:
    """``name``: one of `TARGETS`. ``gamma``: the tokens it speaks of.

    Examples
    --------
    >>> Target("length", gamma=3).of(np.array([0, 1, 3, 8])).tolist()
    [0, 1, 3, 3]
    >>> Target("classes", gamma=2).expected(np.array([[0.5, 0.25]])).tolist()
    [[0.5, 0.25, 0.25]]
    """

    name: str
    gamma: int

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
        found = accepted_N.clip(0, self.gamma) if self.ordered else class_of(accepted_N, self.gamma)
        return found.astype(np.int64)

    def expected(self, reached_NG: np.ndarray) -> np.ndarray:
        """Probabilities of the classes [N, L] from P(A >= n), n = 1..γ."""
        ends_NG = reached_NG if self.ordered else reached_NG[:, [0, -1]]
        return -np.diff(ends_NG, axis=1, prepend=1.0, append=0.0)
