"""Branch-parallel decodes of recorded texts in arrays, as `predictors.replay.grid` is for chains.

A round knows its start, whether a branch survived the round before, and the policy's memory. Its block is a chain from the start, so
the policies of `predictors.replay.policies` say what is drafted with the target idle, and what is retained. Behind a block of P tokens

    candidates    by the draft's confidence there      tokens on a branch    min(γ, budget - start - P - 2)
    hit           P <= would, and the text's token is one of the candidates and accepted (`predictors.replay.branches`)

Shape suffixes: X readings, S starts, P tokens of a block (0..γ), T stages (idle, retained), M states of memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from predictors.latency.branching import BranchRound, branch_parallel_prediction, branch_round_latency
from predictors.replay.branches import MATCH, BranchSettings, require_replayable
from predictors.replay.decode import Reading
from predictors.replay.grid import Drafts, Memory, Starts, Totals, summed, visited
from predictors.replay.prices import Prices

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BranchStarts:
    """Every round of branch-parallel decodes of ``readings`` at one sampling setting: ``idle`` are the starts where the draft stage
    has the target idle, ``retained`` those where a branch survived; ``concurrent`` as for `Clock.branches`."""

    readings: Sequence[Reading]
    config: BranchSettings
    concurrent: bool
    idle: Starts
    retained: Starts

    @staticmethod
    def of(
        readings: Sequence[Reading], config: BranchSettings, verifier: str, prices: Prices, concurrent: bool
    ) -> "BranchStarts":
        """`ValueError` if ``config`` goes beyond what was recorded."""
        for one in readings:
            require_replayable(one.text, config)
        retained = Starts.of(readings, config.gamma, verifier, prices)
        most = (config.draft_stage_gamma or config.gamma) if config.draft_stage == "idle" else 0
        idle = replace(retained, cap_XS=np.minimum(retained.cap_XS, most))
        return BranchStarts(readings, config, concurrent, idle, retained)

    @property
    def _row_XSP(self) -> np.ndarray:
        """The row behind so many tokens of the text, as an index."""
        starts = np.arange(self.retained.would_XS.shape[1])
        return np.minimum(starts[:, None] + np.arange(self.config.gamma + 1), starts[-1])[None]

    def _at_rows(self, values: Sequence[np.ndarray], row_XSP: np.ndarray) -> np.ndarray:
        return self.retained.by_start(values)[np.arange(len(self.readings))[:, None, None], row_XSP]

    @cached_property
    def grown_XSP(self) -> np.ndarray:
        """Tokens on a branch behind the candidate; 0 where there are no branches."""
        budget_X = np.array([one.text.budget for one in self.readings])
        start_SP = np.add.outer(np.arange(self.retained.would_XS.shape[1]), np.arange(self.config.gamma + 1)) + 3
        grown_XSP = np.clip(budget_X[:, None, None] - start_SP, 0, self.config.gamma)
        grown_XSP[..., 1:][self.retained.ends_XSG] = 0
        return grown_XSP

    @cached_property
    def count_XSP(self) -> np.ndarray:
        """Candidates behind a block."""
        path_XSP = np.minimum(np.arange(self.config.gamma + 1), self.retained.would_XS[..., None])
        row_XSP = np.minimum(np.arange(path_XSP.shape[1])[:, None] + path_XSP, path_XSP.shape[1] - 1)
        beside_XSP = np.arange(self.config.gamma + 1) - path_XSP
        rows_XSPG = self._at_rows([one.text.columns["confidence"] for one in self.readings], row_XSP)
        slot_XSP1 = np.minimum(beside_XSP, rows_XSPG.shape[-1] - 1)[..., None]
        confidence_XSP = np.take_along_axis(rows_XSPG, slot_XSP1, axis=-1)[..., 0]
        number = np.frompyfunc(lambda confidence: self.config.num_branches(float(confidence)), 1, 1)
        return np.where(self.grown_XSP > 0, number(np.nan_to_num(confidence_XSP)), 0).astype(int)

    @cached_property
    def hit_XSP(self) -> np.ndarray:
        """Whether a candidate is the text's token, and accepted, behind a block that is accepted whole."""
        texts, count_XSP, place_P = (
            [one.text for one in self.readings],
            self.count_XSP,
            np.arange(self.config.gamma + 1),
        )
        open_XSP = (count_XSP > 0) & (place_P <= self.retained.would_XS[..., None])
        open_XSP &= place_P < self.retained.left_XS[..., None]
        if texts[0].settings.greedy or self.config.branch_verifier == MATCH:
            return open_XSP & (self._at_rows([text.columns["rank"] for text in texts], self._row_XSP) < count_XSP)
        hits_XSPC = self._at_rows([text.columns["hits"] for text in texts], self._row_XSP)
        if (open_XSP & (count_XSP > hits_XSPC.shape[-1])).any():
            raise ValueError(
                f"{count_XSP.max()} candidates cannot be replayed where {hits_XSPC.shape[-1]} were recorded. Raise "
                "traces.texts.candidates."
            )
        which_XSP1 = np.clip(count_XSP - 1, 0, hits_XSPC.shape[-1] - 1)[..., None]
        chance_XSP = np.take_along_axis(hits_XSPC, which_XSP1, axis=-1)[..., 0]
        return open_XSP & (self._at_rows([one.tried[1:] for one in self.readings], self._row_XSP) < chance_XSP)

    @cached_property
    def _prefill_X(self) -> np.ndarray:
        return np.array([self._seconds_of((), one.text.prompt_tokens) for one in self.readings])

    def _seconds_of(self, rounds: Sequence[BranchRound], prompt_tokens: int) -> float:
        prices, sampled = self.retained.prices, not self.readings[0].text.settings.greedy
        return branch_parallel_prediction(prices.profile, rounds, 1, prompt_tokens, sampled, self.concurrent).seconds

    @cached_property
    def _priced(self) -> dict[Shape, float]:
        return {}

    def priced(self, shape: Shape) -> float:
        """Seconds of a round of this shape: the fields of `BranchRound`."""
        if shape not in self._priced:
            profile, sampled = self.retained.prices.profile, not self.readings[0].text.settings.greedy
            context, *counts, continues, law_known, reached = shape
            made = BranchRound(context, *counts, bool(continues), bool(law_known), bool(reached))
            self._priced[shape] = branch_round_latency(profile, made, sampled, self.concurrent).seconds
        return self._priced[shape]


def branch_decoded(
    starts: BranchStarts, idle: Drafts, retained: Drafts, question: float = 0.0, memory: Memory | None = None
) -> Totals:
    """Exact totals of every text by a policy that drafts as ``idle`` says, and keeps of a branch what ``retained`` says.

    Visits [X, S, 2 M] are of idle stages, then of retained ones.
    """

    def staged(of: Callable[[Drafts], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(drafts) for drafts in (idle, retained)], axis=2)

    size_XSM, states = staged(lambda made: made.submitted_XSM), idle.submitted_XSM.shape[2]
    would_XS1, left_XS1 = starts.retained.would_XS[..., None], starts.retained.left_XS[..., None]
    accepted_XSM = np.minimum(would_XS1, size_XSM)
    emitted_XSM = np.minimum(accepted_XSM + 1, left_XS1)
    hit_XSM = np.take_along_axis(starts.hit_XSP, size_XSM, axis=2)
    known = 0 if memory is None else memory.after(accepted_XSM, size_XSM)
    visits_XSM = visited(emitted_XSM, hit_XSM * states + known, 0 if memory is None else memory.first)
    count_XSM, grown_XSM = (np.take_along_axis(one, size_XSM, axis=2) for one in (starts.count_XSP, starts.grown_XSP))
    survived_M = np.arange(2 * states) >= states
    idle_XSM = np.where(survived_M, 0, size_XSM)
    known_XSM = np.where(
        survived_M,
        size_XSM < starts.retained.cap_XS[..., None],
        staged(lambda made: made.passes_XSM > made.submitted_XSM),
    )
    levels_XSM = idle_XSM + np.where(count_XSM > 0, 1 + grown_XSM, 0)
    cells = np.nonzero(visits_XSM)
    drafted_XSM = idle_XSM + count_XSM * (1 + grown_XSM)
    shapes = (size_XSM, idle_XSM, levels_XSM, drafted_XSM, count_XSM, np.broadcast_to(survived_M, size_XSM.shape))
    shapes = (*shapes, known_XSM & (count_XSM > 0), would_XS1 >= size_XSM)
    context_V = starts.retained.context_X[cells[0]] + cells[1]
    rounds = zip(context_V.tolist(), *(one[cells].astype(int).tolist() for one in shapes), strict=True)
    asked_X = summed(staged(lambda made: made.asked_XSM), visits_XSM)
    seconds_X = np.bincount(cells[0], [starts.priced(shape) for shape in rounds], len(starts.readings))
    read = (summed(counts, visits_XSM[..., :states]) for counts in (idle.confidences_XSM, idle.entropies_XSM))
    seconds_X += [starts.retained.prices.reading(*counts) for counts in zip(*read, strict=True)]
    return Totals(
        starts.retained.left_XS[:, 0] + 1,
        seconds_X + starts._prefill_X + question * asked_X,
        summed(visits_XSM, visits_XSM),
        summed(size_XSM, visits_XSM),
        summed(levels_XSM, visits_XSM),
        summed(accepted_XSM + hit_XSM, visits_XSM),
        asked_X,
        visits_XSM,
    )
