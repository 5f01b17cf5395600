"""Branch-parallel decodes of recorded texts in arrays, as `predictors.replay.grid` is for chains.

A round knows its start, whether a branch survived the round before, and the policy's memory. Its block is a chain from the start:
`predictors.replay.policies` say what is drafted with the target idle, and what is retained. Behind a block of P tokens

    candidates    by the draft's confidence there      tokens on a branch    min(γ, budget - start - P - 2)
    hit           P <= would, and the text's token is one of the candidates and accepted (`predictors.replay.branches`)

Shape suffixes: X readings, S starts, P tokens of a block (0..γ), T stages (idle, retained), M states of memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from predictors.latency.branching import BranchRound, branch_parallel_prediction, branch_round_latency
from predictors.replay.branches import MATCH, BranchSettings, require_replayable
from predictors.replay.decode import Reading
from predictors.replay.grid import NO_MEMORY, Drafts, Memory, Starts, Totals, summed, visited
from predictors.replay.prices import Prices
from predictors.replay.text import BeyondRecordError


@dataclass(frozen=True)
class BranchStarts:
    """Every round of branch-parallel decodes of ``readings`` at one sampling setting: chains from starts where the target is
    ``idle``, and from those where a branch survived and is ``retained``; ``concurrent`` as for `Clock.branches`."""

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
        return np.asarray(np.minimum(starts[:, None] + np.arange(self.config.gamma + 1), starts[-1])[None])

    def _at_rows(self, values: Sequence[np.ndarray], row_XSP: np.ndarray) -> np.ndarray:
        return np.asarray(self.retained.by_start(values)[np.arange(len(self.readings))[:, None, None], row_XSP])

    @cached_property
    def grown_XSP(self) -> np.ndarray:
        """Tokens on a branch behind the candidate; 0 where there are no branches."""
        budget_X = np.array([one.text.budget for one in self.readings])
        start_SP = np.add.outer(np.arange(self.retained.would_XS.shape[1]), np.arange(self.config.gamma + 1)) + 3
        grown_XSP = np.clip(budget_X[:, None, None] - start_SP, 0, self.config.gamma)
        grown_XSP[..., 1:][self.retained.ends_XSG] = 0
        return np.asarray(grown_XSP)

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
            raise BeyondRecordError(
                f"{count_XSP.max()} candidates cannot be replayed where {hits_XSPC.shape[-1]} were recorded. Raise "
                "traces.texts.candidates."
            )
        which_XSP1 = np.clip(count_XSP - 1, 0, hits_XSPC.shape[-1] - 1)[..., None]
        chance_XSP = np.take_along_axis(hits_XSPC, which_XSP1, axis=-1)[..., 0]
        return open_XSP & (self._at_rows([one.tried[1:] for one in self.readings], self._row_XSP) < chance_XSP)

    @cached_property
    def sampled(self) -> bool:
        """Whether at a temperature above 0."""
        return not self.readings[0].text.settings.greedy

    @cached_property
    def prefill_X(self) -> np.ndarray:
        """Seconds of both models' prefills."""
        profile = self.retained.prices.profile
        return np.array(
            [
                branch_parallel_prediction(profile, (), 1, prompt, self.sampled, self.concurrent).seconds
                for prompt in self.retained.context_X.tolist()
            ]
        )

    @cached_property
    def round_seconds(self) -> Callable[[BranchRound], float]:
        """Of one round; the same rounds are met by many policies."""
        profile = self.retained.prices.profile
        return cache(lambda made: branch_round_latency(profile, made, self.sampled, self.concurrent).seconds)


@dataclass(frozen=True)
class _Rounds:
    """What `branch_decoded` counts in every round [X, S, M], ``survived_M`` where a branch did."""

    starts: BranchStarts
    size_XSM: np.ndarray
    stopped_XSM: np.ndarray
    survived_M: np.ndarray

    def at_size(self, values_XSP: np.ndarray) -> np.ndarray:
        """Of values behind a block: those behind the one drafted."""
        return np.take_along_axis(values_XSP, self.size_XSM, axis=2)

    @cached_property
    def idle_XSM(self) -> np.ndarray:
        return np.where(self.survived_M, 0, self.size_XSM)

    @cached_property
    def branch_levels_XSM(self) -> np.ndarray:
        return np.where(self.at_size(self.starts.count_XSP) > 0, 1 + self.at_size(self.starts.grown_XSP), 0)

    def seconds(self, cells: tuple[np.ndarray, ...]) -> list[float]:
        """Of the rounds at ``cells``, without readings and questions."""
        chains, count_XSM = self.starts.retained, self.at_size(self.starts.count_XSP)
        cut_XSM = self.size_XSM < chains.cap_XS[..., None]
        columns = (
            (chains.context_X[:, None] + np.arange(chains.left_XS.shape[1]))[..., None],
            self.size_XSM,
            self.idle_XSM,
            self.idle_XSM + self.branch_levels_XSM,
            self.idle_XSM + count_XSM * self.branch_levels_XSM,
            count_XSM,
            self.survived_M,
            np.where(self.survived_M, cut_XSM, self.stopped_XSM) & (count_XSM > 0),
            chains.would_XS[..., None] >= self.size_XSM,
        )
        made = (np.broadcast_to(column, self.size_XSM.shape)[cells].tolist() for column in columns)
        return [self.starts.round_seconds(BranchRound(*row)) for row in zip(*made, strict=True)]


def branch_decoded(
    starts: BranchStarts, idle: Drafts, retained: Drafts, question: float = 0.0, memory: Memory | None = None
) -> Totals:
    """Exact totals of every text by a policy that drafts as ``idle`` says, and keeps of a branch what ``retained`` says.

    Visits [X, S, 2 M] are of idle stages, then of retained ones.
    """
    memory = memory or NO_MEMORY
    idle, retained, states = idle.by_state(memory), retained.by_state(memory), memory.states
    size_XSM, passes_XSM, asked_XSM = (
        np.concatenate(both, axis=2)
        for both in (
            (idle.submitted_XSM, retained.submitted_XSM),
            (idle.passes_XSM, retained.passes_XSM),
            (idle.asked_XSM, retained.asked_XSM),
        )
    )
    rounds = _Rounds(starts, size_XSM, passes_XSM > size_XSM, np.arange(2 * states) >= states)
    accepted_XSM = np.minimum(starts.retained.would_XS[..., None], size_XSM)
    emitted_XSM = np.minimum(accepted_XSM + 1, starts.retained.left_XS[..., None])
    hit_XSM = rounds.at_size(starts.hit_XSP)
    visits_XSM = visited(emitted_XSM, hit_XSM * states + memory.after(accepted_XSM, size_XSM), memory.first)
    cells = np.nonzero(visits_XSM)
    read = (summed(counts, visits_XSM[..., :states]) for counts in (idle.confidences_XSM, idle.entropies_XSM))
    read_X = np.array([starts.retained.prices.reading(*counts) for counts in zip(*read, strict=True)])
    spent_X = np.bincount(cells[0], rounds.seconds(cells), len(starts.readings))
    levels_XSM = rounds.idle_XSM + rounds.branch_levels_XSM
    rounds_X, submitted_X, levels_X, accepted_X, asked_X = (
        summed(count_XSM, visits_XSM)
        for count_XSM in (visits_XSM, size_XSM, levels_XSM, accepted_XSM + hit_XSM, asked_XSM)
    )
    seconds_X = starts.prefill_X + spent_X + read_X + question * asked_X
    tokens_X = starts.retained.left_XS[:, 0] + 1
    return Totals(tokens_X, seconds_X, rounds_X, submitted_X, levels_X, accepted_X, asked_X, visits_XSM)
