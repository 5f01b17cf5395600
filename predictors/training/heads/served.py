"""The decoding that a head is fitted for, and on every decode of recorded texts what static lengths, confidence and its own rules
are worth.

A policy is what is drafted with the target idle, and, in branch-parallel decoding, what is retained of a branch that survived:
either a static length, a confidence ε (a float), or a rule on the head's calibrated probabilities.

Shape suffixes: R rows of the table, X readings, S starts, M states of memory, L classes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch

from predictors.branch_settings import BranchSettings
from predictors.config import Count, one_of
from predictors.decision_rule import Calibration, DecisionRule, LengthRule
from predictors.latency.profile import LatencyProfile
from predictors.network import HRADNetwork, squared_distance
from predictors.replay.branch_grid import BranchStarts, branch_decoded
from predictors.replay.grid import Drafts, Starts, Totals, decoded, no_memory
from predictors.replay.policies import confidence, heads, previous_round, static
from predictors.replay.prices import Prices
from predictors.schema import SPLITS, TRAIN
from predictors.training.heads.roots import Roots, Rows
from predictors.training.text_table import TextTable

CHAIN, BRANCHES = METHODS = ("chain", "branches")
OWN = ("method", "concurrent")  # of `Decoding`, and no options of the decoder


@dataclass(frozen=True)
class Decoding(BranchSettings):
    """``method`` chain or branches, drafts of at most ``gamma`` tokens, verified by ``verifier``; ``concurrent``: priced side by
    side on this machine, else on the virtual clock."""

    method: Annotated[str, one_of(*METHODS)] = CHAIN
    gamma: Count = 12
    verifier: str = "block"
    concurrent: bool = False

    @property
    def decoder(self) -> dict[str, Any]:
        """The configuration of a bundle's decoder."""
        if self.method == CHAIN:
            chain = {"kind": "chain", "gamma": self.gamma}
            return {"method": "speculative", "drafter": chain, "verifier": self.verifier}
        options = {name: value for name, value in vars(self).items() if name not in OWN and value is not None}
        return {"preset": "specbranch", **options}


@dataclass(frozen=True)
class Decodes:
    """Decodes at one split and setting: starts where drafts are made with the target ``idle``, the table's ``row_XS`` of each (of
    none after a text's end), and in branch-parallel decoding ``branches``."""

    idle: Starts
    row_XS: np.ndarray
    branches: BranchStarts | None = None

    @property
    def retained(self) -> Starts | None:
        """Where a branch survived the round before; chains have none."""
        return None if self.branches is None else self.branches.retained

    @property
    def document_X(self) -> np.ndarray:
        """Each text's document."""
        return self.idle.document_X


def decodes_of(
    table: TextTable, decoding: Decoding, profile: LatencyProfile, repeats: int, seed: int
) -> dict[tuple[str, int], Decodes]:
    """By split and number of the setting; ``repeats`` of chance on held-out texts that are sampled, one on others."""
    made, prices = {}, {sampled: Prices(profile, sampled) for sampled in (False, True)}
    for split in SPLITS:
        row_N = np.flatnonzero(table.column("split") == split)
        texts = table.rows(split).readings(seed, 1 if split == TRAIN else repeats)
        for settings, some in texts.items():
            readings, priced = [reading for reading, _ in some], prices[not settings.greedy]
            if decoding.method == CHAIN:
                idle, branches = Starts.of(readings, decoding.gamma, decoding.verifier, priced), None
            else:
                branches = BranchStarts.of(readings, decoding, decoding.verifier, priced, decoding.concurrent)
                idle = branches.idle
            rows_X = np.array([reading.text.length - 1 for reading in readings])
            row_XS = np.array([rows.start for _, rows in some])[:, None]
            row_XS = row_N[row_XS + np.minimum(np.arange(rows_X.max()), rows_X[:, None] - 1)]
            made[split, table.settings.index(settings)] = Decodes(idle, row_XS, branches)
    return made


Rule = DecisionRule | LengthRule
Choice = int | float | Rule


@dataclass(frozen=True)
class Said:
    """What a network says of every row with every past, if it reads one: raw ``logits_RML``, and squared distances
    ``distance_RM``."""

    roots: Roots
    logits_RML: torch.Tensor
    distance_RM: np.ndarray

    @staticmethod
    @torch.inference_mode()
    def of(network: HRADNetwork, roots: Roots) -> "Said":
        """The state is reduced once a row; of the features only scalars follow from the past."""
        every, states = np.arange(len(roots.setting_R)), roots.spec.gamma + 2 if roots.spec.scalars else 1
        reduced = [network.reduction(roots.features(every, np.zeros_like(every)))]
        size = roots.spec.state_size
        mean, scale = network.reduction.mean[size:], network.reduction.scale[size:]
        for past in range(1, states):
            scalars = (roots.scalars(every, np.full_like(every, past)) - mean) / scale
            reduced.append(torch.cat([reduced[0][:, : -len(mean)], scalars], dim=1))
        logits = torch.stack([network.head(rows) for rows in reduced], dim=1)
        return Said(roots, logits, torch.stack([squared_distance(rows) for rows in reduced], dim=1).numpy())

    def of_rows(self, rows: Rows) -> tuple[torch.Tensor, np.ndarray]:
        """Logits [P, L] and squared distances [P] of rows with a past."""
        past_P = rows.past_P if self.logits_RML.shape[1] > 1 else np.zeros_like(rows.past_P)
        return self.logits_RML[rows.row_P, past_P], self.distance_RM[rows.row_P, past_P]


@dataclass(frozen=True)
class Served:
    """A head of ``roots`` on ``decodes``, each ``query`` of which takes so many seconds. For its rules: what it ``said``, its
    ``calibration``, how far features may lie (``max_distance``), and static lengths for rounds in which it stands aside."""

    decodes: Decodes
    roots: Roots
    query: float
    said: Said | None = None
    calibration: Calibration | None = None
    max_distance: float = 0.0
    static_gamma: int = 0
    retained_gamma: int = 0

    def totals(self, draft: Choice, retention: Choice) -> Totals:
        """Every text decoded by a policy."""
        idle, branches = self.drafts(draft, False), self.decodes.branches
        retained = idle if branches is None else self.drafts(retention, True)
        remembers = any(one.submitted.shape[2] > 1 for one in (idle, retained))
        memory = previous_round(self.roots.spec.gamma) if remembers else no_memory
        if branches is None:
            return decoded(self.decodes.idle, idle, self.query, memory)
        return branch_decoded(branches, idle, retained, self.query, memory)

    def drafts(self, choice: Choice, retains: bool) -> Drafts:
        """What is drafted, or retained, at every start."""
        retained = self.decodes.retained
        starts = retained if retains and retained is not None else self.decodes.idle
        if isinstance(choice, int):
            return static(starts, choice)
        if isinstance(choice, float):
            return confidence(starts, self._largest_XSG, choice)
        spec, aside = self.roots.spec, self.retained_gamma if retains else self.static_gamma
        at_root, largest_XSG = spec.decides_before_drafting, self._largest_XSG
        return heads(starts, self._probabilities_XSML, choice, spec.gamma, at_root, largest_XSG, aside, self._far_XSM)

    @cached_property
    def _largest_XSG(self) -> np.ndarray:
        """The draft's confidence along every chain; what is retained of a branch is one, too."""
        return self.decodes.idle.column("confidence")

    @cached_property
    def _probabilities_XSML(self) -> np.ndarray:
        assert self.said is not None and self.calibration is not None, "it has said nothing"
        probabilities_RML = self.calibration.probabilities(self.said.logits_RML).numpy()
        return np.ascontiguousarray(probabilities_RML[self.decodes.row_XS])

    @cached_property
    def _far_XSM(self) -> np.ndarray:
        assert self.said is not None, "it has said nothing"
        return self.said.distance_RM[self.decodes.row_XS] > self.max_distance
