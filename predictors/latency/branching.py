"""Seconds of branch-parallel decoding, from a latency profile and a run's own rounds.

A round at context l (cached tokens) verifies m submitted tokens, i of them drafted with the target idle, and grows G branch
levels: k candidates, then G - 1 levels of r = (branch tokens - k) / (G - 1) rows on average. Its seconds are

    T      = idle + max(target, branch) + [all m accepted] branch_verdict(k) + [side by side] exchange(m)
    target = target(1 + m, l) + chain_verification(m)
    branch = [law behind the block unknown] draft(1, l + m)
             + branch_candidates(k) + (G - 1) branch_drawing(r) + Σ_{j<G-1} draft(r, l + m + j r)
    idle   = Σ_{j<p} draft(1, l + j) + chain_drawing(p),    p = i + [the controller stopped in front of a token]

Where the controller stops an idle draft stage, the law it stopped at is known behind the block, and its pass was idle too. Within
a branch that survived, the law where retention stops is known without another pass. A request takes both prefills and its rounds:

    E = max(target_prefill(P), draft_prefill(P)) + Σ T

    side by side    both models at once, each with its share of the cores (overlap "processes", on the wall clock): passes are
                    read from beside_target and beside_draft, and prefills are slowed down as the widest passes there are
    one by one      nothing at once, and each has all cores (overlap "none", on the virtual clock): passes are read from target
                    and draft

Source: specification of drafting, sections 3.4 to 3.6 and 10. Left out: what controllers compute, how the draft settles a
verdict, and, side by side, that the longer job runs its last stretch alone, as idle drafting does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from predictors.latency.profile import LatencyProfile
from predictors.rounds import RoundRecord

LONGEST_BRANCH = 1024  # where drafting is so cheap that branches of any length are hidden


@dataclass(frozen=True)
class BranchRound:
    """What one round of branch-parallel decoding was made of; counts as in `predictors.rounds.RoundRecord`."""

    context: int  # cached tokens before the round: all committed ones but the newest
    submitted: int  # tokens that the target verified
    idle_levels: int  # levels drafted for them with the target idle
    levels: int  # those and the branches'
    drafted: int  # tokens of both
    candidates: int  # tried at the branch point; 0 where there was none, or a controller wanted none
    continues: bool  # a branch survived the round before: the block is what was retained of it
    law_known: bool  # behind the block, before branches grew: drafting stopped there, or the branch's end was left out
    reached: bool  # the whole block was accepted, so that the candidates were verified

    def __post_init__(self) -> None:
        grown, tokens = self.levels - self.idle_levels, self.drafted - self.idle_levels
        if min(self.context, self.submitted, self.idle_levels, self.candidates, grown) < 0:
            raise ValueError(f"a round has no counts below 0, and no fewer levels than idle ones: {self}.")
        if self.idle_levels not in (0, self.submitted) or (self.continues and self.idle_levels):
            raise ValueError(f"a block is drafted with the target idle, or retained, never both: {self}.")
        least = self.candidates + max(0, grown - 1)
        if (tokens < least or not grown) if self.candidates else (tokens or grown > 1):
            raise ValueError(f"branches have candidates and then a token on every level, or there are none: {self}.")

    @staticmethod
    def of(record: RoundRecord, context: int, continues: bool) -> "BranchRound":
        """By what is recorded of a round, and what its record does not say."""
        return BranchRound(
            context,
            record.submitted,
            record.idle_levels,
            record.levels,
            record.drafted,
            record.candidates,
            continues,
            record.law_known,
            reached=record.accepted_in_sequence == record.submitted,
        )

    @property
    def idle_passes(self) -> int:
        """Draft passes with the target idle."""
        return self.idle_levels + (self.law_known and not self.continues)

    @property
    def grown_levels(self) -> int:
        """Branch levels behind the candidates'."""
        return max(0, self.levels - self.idle_levels - 1)

    @property
    def rows(self) -> float:
        """Mean tokens on those levels."""
        tokens = self.drafted - self.idle_levels - self.candidates
        return tokens / self.grown_levels if self.grown_levels else 0.0


@dataclass(frozen=True)
class BranchCosts:
    """Seconds of rounds and of their parts. ``sampled``: at a temperature above 0; ``concurrent``: both models at
    work at once, of which the profile needs the tables ``beside_target``, ``beside_draft`` and ``exchange``; else one after the
    other, on the virtual clock."""

    profile: LatencyProfile
    sampled: bool
    concurrent: bool

    def request(self, rounds: Iterable[BranchRound], prompt_tokens: int) -> float:
        """One request after a prompt of ``prompt_tokens``: the prefills and ``rounds``."""
        times = [self.round(made) for made in rounds]
        target, draft = (self._spent(f"{name}_prefill", tokens=prompt_tokens) for name in ("target", "draft"))
        if self.concurrent:
            target, draft = target * self._slowdown("target", "tokens"), draft * self._slowdown("draft", "rows")
        return sum(times, max(target, draft))

    def round(self, made: BranchRound) -> float:
        """One round."""
        total = self._idle(made) + max(self._target(made.context, made.submitted), self._branches(made))
        if made.reached and made.candidates:
            total += self._outside("branch_verdict", candidates=made.candidates)
        return total + self._spent("exchange", submitted=made.submitted) if self.concurrent else total

    def balanced_gamma(self, submitted: int, candidates: int, context: float) -> int:
        """The most continuation tokens (``gamma``) whose branches are grown within the target's pass over ``submitted`` tokens.

        All ``candidates`` go on, and the law behind the block is unknown, as it is where drafting ran to its cap. At 0 not even
        one level is hidden; `LONGEST_BRANCH` stands for any length.
        """
        end = context + submitted
        hidden = self._target(context, submitted)
        branches = self._point(end, candidates, law_known=False)
        for gamma in range(LONGEST_BRANCH):
            branches += self._level(end, candidates, gamma)
            if branches > hidden:
                return gamma
        return LONGEST_BRANCH

    def _idle(self, made: BranchRound) -> float:
        """The draft stage with the target idle."""
        passes = made.idle_passes
        total = self._outside("chain_drawing", drafted=passes) if passes else 0.0
        return sum((self._draft(1, made.context + place) for place in range(passes)), total)

    def _target(self, context: float, submitted: int) -> float:
        """The target's pass over the block, and its verdict."""
        table = "beside_target" if self.concurrent else "target"
        passed = self._spent(table, tokens=1 + submitted, context=context)
        return passed + self._outside("chain_verification", drafted=submitted)

    def _branches(self, made: BranchRound) -> float:
        """Growing the branches."""
        if made.levels == made.idle_levels:
            return 0.0
        end = made.context + made.submitted
        levels = (self._level(end, made.rows, place) for place in range(made.grown_levels))
        return sum(levels, self._point(end, made.candidates, made.law_known))

    def _point(self, end: float, candidates: int, law_known: bool) -> float:
        """Candidates behind ``end`` tokens."""
        drawn = self._outside("branch_candidates", rows=candidates)
        return drawn if law_known else drawn + self._draft(1, end)

    def _level(self, end: float, rows: float, place: int) -> float:
        """The branch level behind ``place`` others of ``rows`` that follow ``end`` tokens."""
        return self._draft(rows, end + place * rows) + self._outside("branch_drawing", rows=rows)

    def _slowdown(self, name: str, size: str) -> float:
        """The widest pass beside the other model, in such passes alone, at the shortest context."""
        table = self.profile.table(f"beside_{name}")
        at = {size: table.axes[size][-1], "context": table.axes["context"][0]}
        return table.at(**at).seconds / self._spent(name, **at)

    def _draft(self, rows: float, context: float) -> float:
        return self._spent("beside_draft" if self.concurrent else "draft", rows=rows, context=context)

    def _outside(self, table: str, **at: float) -> float:
        return self._spent(table, sampled=int(self.sampled), **at)

    def _spent(self, table: str, **at: float) -> float:
        return self.profile.latency(table, **at).seconds
