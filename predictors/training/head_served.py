"""The decoding that a head is fitted for, and its replay on recorded texts: decodes by static lengths, by confidence and by the
head's own rules.

A policy is what is drafted with the target idle, and, in branch-parallel decoding, what is retained of a branch that survived:
either a static length, a confidence ε (a float), or a rule on the head's calibrated probabilities.

Shape suffixes: R rows of the table, X texts, S starts, M states of memory, L classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch

from predictors.config import Count, one_of
from predictors.head import Calibration, DecisionRule, HRADNetwork, LengthRule
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.network import squared_distance
from predictors.replay.branches import BranchStarts, branch_decoded
from predictors.replay.grid import Drafts, Starts, Totals, decoded, no_memory
from predictors.replay.policies import confidence, heads, previous_round, static
from predictors.rounds import BranchSettings
from predictors.schema import SPLITS
from predictors.training.head_roots import RootRows, Roots
from predictors.training.predictor import rate_of
from predictors.training.tables import TextTable

Rule = DecisionRule | LengthRule
Choice = int | float | Rule
CHAIN, BRANCHES = METHODS = ("chain", "branches")
OWN = ("method", "open")  # of `Decoding`, and no options of the decoder
OPEN = ("gamma", "k_max")  # of branches: by the pair, where parameters do not name them
MOST_BRANCHES = (1, 2, 3, 4, 6, 8, 12, 18)  # k_max tried


@dataclass(frozen=True)
class Decoding(BranchSettings):
    """Decoding that a head serves: ``method`` chain or branches (priced on the virtual clock), drafts of at most ``gamma``
    tokens, verified by ``verifier``. What is ``open`` is chosen by the fit (`balanced`, `best_k_max`)."""

    method: Annotated[str, one_of(*METHODS)] = CHAIN
    gamma: Count = 8
    verifier: str = "block"
    open: tuple[str, ...] = ()

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave open what parameters of branches do not name."""
        unnamed = [name for name in OPEN if name not in values] if values.get("method") == BRANCHES else []
        return {"open": unnamed, **values}

    @property
    def decoder(self) -> dict[str, Any]:
        """Configuration of a bundle's decoder."""
        if self.method == CHAIN:
            chain = {"kind": "chain", "gamma": self.gamma}
            return {"method": "speculative", "drafter": chain, "verifier": self.verifier}
        options = {name: value for name, value in vars(self).items() if name not in OWN and value is not None}
        return {"preset": "specbranch", **options}


@dataclass(frozen=True)
class Answered:
    """Outputs of a network for every row with every past, if it reads one: raw ``logits_RML``, and squared distances
    ``distance_RM``."""

    roots: Roots
    logits_RML: torch.Tensor
    distance_RM: np.ndarray

    @staticmethod
    @torch.inference_mode()
    def of(network: HRADNetwork, roots: Roots) -> "Answered":
        """Run the network on all roots. The state is reduced once a row; of the features only scalars follow from the past."""
        every, states = np.arange(len(roots.setting_R)), roots.spec.gamma + 2 if roots.spec.scalars else 1
        reduced = [network.reduced(roots.features(every, np.zeros_like(every)))]
        size = roots.spec.state_size
        mean, scale = network.reduction.mean[size:], network.reduction.scale[size:]
        for past in range(1, states):
            scalars = (roots.features(every, np.full_like(every, past), states=False) - mean) / scale
            reduced.append(torch.cat([reduced[0][:, : -len(mean)], scalars], dim=1))
        logits = torch.stack([network.outputs(rows) for rows in reduced], dim=1)
        return Answered(roots, logits, torch.stack([squared_distance(rows) for rows in reduced], dim=1).numpy())

    def of_rows(self, rows: RootRows) -> tuple[torch.Tensor, np.ndarray]:
        """Return logits [P, L] and squared distances [P] of rows with a past."""
        past_P = rows.past_P if self.logits_RML.shape[1] > 1 else np.zeros_like(rows.past_P)
        return self.logits_RML[rows.row_P, past_P], self.distance_RM[rows.row_P, past_P]


@dataclass(frozen=True)
class Served:
    """A head of ``roots`` on decodes at one split and setting, each ``query`` of which takes so many seconds.

    Starts where drafts are made with the target ``idle``, the table's ``row_XS`` of each (of none after a text's end), and in
    branch-parallel decoding ``branches``. For rules: the head's outputs ``said``, its ``calibration``, how far features may lie
    (``max_distance``), and the ``static`` lengths, drafted and retained, of rounds in which it is bypassed.
    """

    roots: Roots
    query: float
    idle: Starts
    row_XS: np.ndarray
    branches: BranchStarts | None = None
    said: Answered | None = None
    calibration: Calibration = field(default_factory=Calibration)
    max_distance: float = 0.0
    static: tuple[int, int] = (0, 0)

    @property
    def retained(self) -> Starts | None:
        """Starts where a branch survived the round before; ``None`` for chains."""
        return None if self.branches is None else self.branches.retained

    def totals(self, draft: Choice, retention: Choice) -> Totals:
        """Decode every text by a policy."""
        idle = self.drafts(draft, False)
        retained = idle if self.branches is None else self.drafts(retention, True)
        remembers = any(one.submitted.shape[2] > 1 for one in (idle, retained))
        memory = previous_round(self.roots.spec.gamma) if remembers else no_memory
        if self.branches is None:
            return decoded(self.idle, idle, self.query, memory)
        return branch_decoded(self.branches, idle, retained, self.query, memory)

    def drafts(self, choice: Choice, retains: bool) -> Drafts:
        """Draft, or retain, by ``choice`` at every start."""
        starts = self.retained if retains and self.retained is not None else self.idle
        if isinstance(choice, int):
            return static(starts, choice)
        if isinstance(choice, float):
            return confidence(starts, self._largest_XSG, choice)
        spec, aside, largest_XSG = self.roots.spec, self.static[retains], self._largest_XSG
        at_root, probabilities_XSML = spec.decides_before_drafting, self._probabilities_XSML
        return heads(starts, probabilities_XSML, choice, spec.gamma, at_root, largest_XSG, aside, self._far_XSM)

    def met(self, drafts: Drafts, past_XS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find where a policy with ``past_XS`` leads: rows and pasts [2, P] of the roots that follow, the texts' first ones among
        them, and the pasts [X, S] that they give to every start.

        A round from every position s gives the position after it its past:  e = s + min(N(s), submitted) + 1. So a text is
        learned from wherever some round of the policy ends, once with every past that occurs. A policy that reads its own past
        needs one at s, too: that of the latest round which ends there.
        """
        memory = np.minimum(past_XS, drafts.submitted.shape[2] - 1)[..., None]
        submitted_XS = np.take_along_axis(drafts.submitted, memory, axis=2)[..., 0]
        accepted_XS = np.minimum(self.idle.would_XS, submitted_XS)
        text_P, start_P = np.nonzero(self.idle.left_XS > accepted_XS + 1)
        end_P = start_P + accepted_XS[text_P, start_P] + 1
        state_P = previous_round(self.roots.spec.gamma)(accepted_XS, submitted_XS)[text_P, start_P]
        given_XS = np.zeros_like(past_XS)
        given_XS[text_P, end_P] = state_P
        row_P = np.concatenate([self.row_XS[:, 0], self.row_XS[text_P, end_P]])
        past_P = np.concatenate([np.zeros(len(past_XS), dtype=int), state_P])
        return np.unique(np.stack([row_P, past_P]), axis=1), given_XS

    def probabilities(self, rows: RootRows, calibrated: bool = True) -> np.ndarray:
        """Compute probabilities of the classes of some rows [P, L], by default as they are served."""
        assert self.said is not None, "it has said nothing"
        logits_PL = self.said.of_rows(rows)[0]
        plain = Calibration(1.0, (0.0,) * logits_PL.shape[1])
        return (self.calibration if calibrated else plain).probabilities(logits_PL).numpy()

    @cached_property
    def _largest_XSG(self) -> np.ndarray:
        """Confidence of the draft along every chain; what is retained of a branch is one, too."""
        return self.idle.column("confidence")

    @cached_property
    def _probabilities_XSML(self) -> np.ndarray:
        assert self.said is not None, "it has said nothing"
        probabilities_RML = self.calibration.probabilities(self.said.logits_RML).numpy()
        return np.ascontiguousarray(probabilities_RML[self.row_XS])

    @cached_property
    def _far_XSM(self) -> np.ndarray:
        assert self.said is not None, "it has said nothing"
        return self.said.distance_RM[self.row_XS] > self.max_distance


def balanced(decoding: Decoding, prices: RoundPrices, least: int, most: int, context: float) -> int:
    """γ by the balance of both jobs: the most tokens, from ``least`` to ``most``, that one branch grows by within the target's
    pass over as many; ``least`` where none do."""
    hidden = [gamma for gamma in range(least, most + 1) if prices.balanced_gamma(gamma, 1, context) >= gamma]
    return max(hidden, default=least)


def at_k_max(served: "Served", k_max: int) -> "Served":
    """Limit a decoding to at most ``k_max`` branches."""
    assert served.branches is not None, "it grows branches"
    return replace(served, branches=replace(served.branches, config=replace(served.branches.config, k_max=k_max)))


def best_k_max(
    several: Sequence["Served"], recorded: int, pair: Callable[[Sequence["Served"]], tuple[int, int]]
) -> int:
    """Find the k_max, of `MOST_BRANCHES` as far as candidates' hits were ``recorded``, of most replayed tokens per second over
    all texts given, each with the best static ``pair`` of lengths."""
    speeds = {1: 0.0}
    for k_max in (count for count in MOST_BRANCHES if count <= recorded):
        made = [at_k_max(one, k_max) for one in several]
        lengths = pair(made)
        speeds[k_max] = rate_of(one.totals(*lengths) for one in made)
    return max(speeds, key=speeds.__getitem__)


def served_texts(
    table: TextTable, roots: Roots, query: float, decoding: Decoding, profile: LatencyProfile
) -> dict[tuple[str, int], Served]:
    """Collect the texts by split and number of the setting, before the head is run."""
    made, prices = {}, {settings: RoundPrices.at(profile, settings) for settings in table.settings}
    gamma, verifier, branches = decoding.gamma, decoding.verifier, None
    for split in SPLITS:
        part, row_N = table.rows(split), np.flatnonzero(table.column("split") == split)
        for place, settings in enumerate(table.settings):
            idle, rows = part.starts(settings, gamma, verifier, prices[settings])
            if decoding.method == BRANCHES:
                branches = BranchStarts.of(idle, decoding)
                idle = branches.idle
            first_X, last_X = np.array([(one.start, one.stop - 1) for one in rows]).T
            row_XS = np.minimum(first_X[:, None] + np.arange(idle.left_XS.shape[1]), last_X[:, None])
            made[split, place] = Served(roots, query, idle, row_N[row_XS], branches)
    return made
