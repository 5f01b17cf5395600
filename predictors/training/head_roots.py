"""Every position of recorded texts as a root: features, by what the round before it was, and what a head predicts of the next γ
drafted tokens, of which A are accepted.

    classes   none (A = 0), some, or all of them (A >= γ)      H-RAD
    length    min(A, γ)                                       the explicit length predictor: γ + 1 ordered classes

Given a text A has a distribution, P(A >= n) = reached_n. A past is a state of `predictors.replay.policies.previous_round`. Shape
suffixes: R rows of the texts, P roots with a past, N any of them, G tokens, S state size, C scalars, L classes, M pasts.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictors.head import CLASSES, FeatureSpec, assemble
from predictors.replay.policies import remembered
from predictors.training.labelling import Labels, class_of
from predictors.training.tables import ROOT, TextTable
from predictors.training.trace_table import list_column

CLASS, LENGTH = TARGETS = ("classes", "length")


@dataclass(frozen=True)
class Target:
    """Classes that a head predicts: those of ``name``, one of `TARGETS`, about ``gamma`` tokens.

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
        """True if a class is a number of tokens."""
        return self.name == LENGTH

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the head's classes, by number."""
        return tuple(str(length) for length in range(self.gamma + 1)) if self.ordered else CLASSES

    def of(self, accepted_N: np.ndarray) -> np.ndarray:
        """Turn accepted counts into classes [N] int64."""
        found = accepted_N.clip(0, self.gamma) if self.ordered else class_of(accepted_N, self.gamma)
        return found.astype(np.int64)

    def expected(self, reached_NG: np.ndarray) -> np.ndarray:
        """Compute probabilities of the classes [N, L] from P(A >= n), n = 1..γ."""
        ends_NG = reached_NG if self.ordered else reached_NG[:, [0, -1]]
        return -np.diff(ends_NG, axis=1, prepend=1.0, append=0.0)


@dataclass(frozen=True)
class Roots:
    """Rows of a text table [R] as roots: state, first distribution, labels of ``target`` where they are ``known``, and where they
    belong."""

    target: Target
    spec: FeatureSpec
    state_RS: np.ndarray
    confidence_R: np.ndarray
    entropy_R: np.ndarray
    known_R: np.ndarray
    reached_RG: np.ndarray
    accepted_R: np.ndarray
    document_R: np.ndarray
    setting_R: np.ndarray

    @staticmethod
    def of(table: TextTable, labels: Labels, feature_set: str, target: str) -> "Roots":
        """Collect the roots of all texts and their ``labels``. `ValueError` where a state is not finite."""
        manifest, gamma, size = table.manifest, int(labels.facts["gamma"]), len(table)
        spec = FeatureSpec(feature_set, manifest.feature_layers, manifest.hidden_size, manifest.embedding_size, gamma)
        row_N = labels.table.column("row").to_numpy()
        known_R, reached_RG, accepted_R = np.zeros(size, bool), np.zeros((size, gamma)), np.zeros(size, int)
        known_R[row_N], accepted_R[row_N] = True, labels.table.column("accepted").to_numpy()
        reached_RG[row_N] = list_column(labels.table, "reached")
        state_RS = table.column(ROOT)
        if not np.isfinite(state_RS).all():
            raise ValueError(
                "a feature state of the texts is not finite (overflow of float16). Collect the traces again."
            )
        confidence_R, entropy_R = (table.column(name)[:, 0] for name in ("confidence", "entropy"))
        read, labelled = (state_RS, confidence_R, entropy_R), (known_R, reached_RG, accepted_R)
        return Roots(Target(target, gamma), spec, *read, *labelled, table.column("document"), table.setting_N)

    def features(self, row_P: np.ndarray, past_P: np.ndarray, states: bool = True) -> Tensor:
        """Compute raw features [P, S + C], by the function that serving uses; without ``states`` the scalars [P, C]."""
        state_PS = torch.from_numpy(self.state_RS[row_P]) if states else torch.empty(len(row_P), 0)
        before = (torch.from_numpy(values_M[past_P]) for values_M in remembered(self.spec.gamma))
        first = (torch.from_numpy(values_R[row_P]) for values_R in (self.confidence_R, self.entropy_R))
        return assemble(self.spec, state_PS, *before, *first)


@dataclass(frozen=True)
class RootRows:
    """Labelled roots of one split that a decoder meets: ``row_P`` of the table with ``past_P``."""

    roots: Roots
    row_P: np.ndarray
    past_P: np.ndarray

    def __len__(self) -> int:
        return len(self.row_P)

    def take(self, which: np.ndarray) -> "RootRows":
        """Select some of the rows, by number or mask."""
        return RootRows(self.roots, self.row_P[which], self.past_P[which])

    def at(self, setting: int) -> "RootRows":
        """Select the rows of one sampling setting."""
        return self.take(self.roots.setting_R[self.row_P] == setting)

    @property
    def distinct(self) -> "RootRows":
        """Every root once where features read no past, else all rows as they are: how many pasts a root has is no weight."""
        if self.roots.spec.scalars:
            return self
        row_P, first_P = np.unique(self.row_P, return_index=True)
        return RootRows(self.roots, row_P, self.past_P[first_P])

    @property
    def document_P(self) -> np.ndarray:
        return self.roots.document_R[self.row_P]

    @property
    def features(self) -> Tensor:
        """Raw features [P, S + C]."""
        return self.roots.features(self.row_P, self.past_P)

    @property
    def label_P(self) -> np.ndarray:
        """Drawn classes [P] of the rows."""
        return self.roots.target.of(self.roots.accepted_R[self.row_P])

    @property
    def expected_PL(self) -> np.ndarray:
        """Probabilities [P, L] of the rows' classes."""
        return self.roots.target.expected(self.roots.reached_RG[self.row_P])
