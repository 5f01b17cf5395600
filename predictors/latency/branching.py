"""Seconds of branch-parallel decoding, from a latency profile and a run's own rounds; and of rounds of any kind that really ran.

A round at context l (cached tokens) verifies m submitted tokens, i of them drafted with the target idle, and grows G branch
levels: k candidates, then G - 1 levels of r = (branch tokens - k) / (G - 1) rows on average. Its seconds are

    T      = idle + max(target, branch) + [all m accepted] branch_verdict(k)
    target = target(1 + m, l) + chain_verification(m)
    branch = [law behind the block unknown] draft(1, l + m)
             + branch_candidates(k) + (G - 1) branch_drawing(r) + Σ_{j<G-1} draft(r, l + m + j r)
    idle   = Σ_{j<p} draft(1, l + j) + chain_drawing(p),    p = i + [the controller stopped in front of a token]

Where the controller stops an idle draft stage, the law it stopped at is known behind the block, and its pass was idle too. Within
a branch that survived, the law where retention stops is known without another pass. A request takes both prefills and its rounds:

    E = max(target_prefill(P), draft_prefill(P)) + Σ T

Passes are those of a model that is alone at work (overlap "none", on the virtual clock). Source: specification of drafting,
sections 3.4 to 3.6 and 10. Left out: what controllers compute, how the draft settles a
verdict, and that one which reads the target's states runs over accepted tokens again.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import RoundShape, chain_latency, round_latency
from predictors.rounds import ReplayedRound, RoundRecord

OF_BRANCHES = (
    "submitted",
    "idle_levels",
    "levels",
    "drafted",
    "candidates",
    "law_known",
    "accepted",
    "ends_segment",
)  # what the price of a round with branches follows from
LONGEST_BRANCH = 1024  # where drafting is so cheap that branches of any length are hidden


@dataclass(frozen=True)
class BranchCosts:
    """Seconds of rounds and of their parts on the virtual clock. ``sampled``: at a temperature above 0."""

    profile: LatencyProfile
    sampled: bool

    def request(self, rounds: Iterable[ReplayedRound], prompt_tokens: int) -> float:
        """One request after a prompt of ``prompt_tokens``: the prefills and ``rounds``."""
        times = [self.round(made) for made in rounds]
        target, draft = (self._spent(f"{name}_prefill", tokens=prompt_tokens) for name in ("target", "draft"))
        return sum(times, max(target, draft))

    def round(self, made: ReplayedRound) -> float:
        """One round; `ValueError` for one that cannot be."""
        require_possible(made)
        total = self._idle(made) + max(self._target(made.context, made.submitted), self._branches(made))
        if made.candidates and made.accepted >= made.submitted:
            total += self._outside("branch_verdict", candidates=made.candidates)
        return total

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

    def _idle(self, made: ReplayedRound) -> float:
        """The draft stage with the target idle."""
        passes = made.idle_passes
        total = self._outside("chain_drawing", drafted=passes) if passes else 0.0
        return sum((self._draft(1, made.context + place) for place in range(passes)), total)

    def _target(self, context: float, submitted: int) -> float:
        """The target's pass over the block, and its verdict."""
        passed = self._spent("target", tokens=1 + submitted, context=context)
        return passed + self._outside("chain_verification", drafted=submitted)

    def _branches(self, made: ReplayedRound) -> float:
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

    def _draft(self, rows: float, context: float) -> float:
        return self._spent("draft", rows=rows, context=context)

    def _outside(self, table: str, **at: float) -> float:
        return self._spent(table, sampled=int(self.sampled), **at)

    def _spent(self, table: str, **at: float) -> float:
        return self.profile.latency(table, **at).seconds


def require_possible(made: ReplayedRound) -> None:
    """`ValueError` unless branch-parallel decoding makes such rounds."""
    grown, tokens = made.levels - made.idle_levels, made.drafted - made.idle_levels
    if min(made.context, made.submitted, made.idle_levels, made.candidates, grown) < 0:
        raise ValueError(f"a round has no counts below 0, and no fewer levels than idle ones: {made}.")
    if made.idle_levels not in (0, made.submitted) or (made.survived and made.idle_levels):
        raise ValueError(f"a block is drafted with the target idle, or retained, never both: {made}.")
    least = made.candidates + max(0, grown - 1)
    if (tokens < least or not grown) if made.candidates else (tokens or grown > 1):
        raise ValueError(f"branches have candidates and then a token on every level, or there are none: {made}.")


def rounds_seconds(rounds: Iterable[RoundRecord], prompt_tokens: int, profile: LatencyProfile, sampled: bool) -> float:
    """Seconds of ``rounds`` after the prefill of ``prompt_tokens``: chains, trees verified by traversal, or branches, of which
    both jobs count as if each had the device to itself. ``sampled``: at a temperature above 0."""
    total, context, kept = 0.0, prompt_tokens, False
    for made in rounds:
        if made.candidates:
            values = {name: getattr(made, name) for name in OF_BRANCHES}
            replayed = ReplayedRound(**values, context=context, survived=kept and not made.idle_levels)
            total += BranchCosts(profile, sampled).round(replayed)
        elif made.drafted > made.levels:
            rows = (made.drafted / made.levels,) * made.levels
            shape = RoundShape(rows, made.drafted, tree=made.drafted, rule="traversal")
            total += round_latency(profile, shape, context, sampled).seconds
        else:
            total += chain_latency(profile, made.submitted, context, sampled).seconds
        context, kept = context + made.emitted, not made.ends_segment
    return total
