"""The draft's jobs of one request, wherever they run, and the request's timeline."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from predictors.controllers import Controller
from predictors.rounds import RoundRecord, Span
from predictors.signals import Root
from runtime.adapter import LanguageModel
from runtime.branching.candidates import Branches, Pending, Verdict
from runtime.branching.draft import BranchConfig, BranchDraft
from runtime.clock import PhaseClock, Stretch
from runtime.overlap import Overlap
from runtime.randomness import Chance, spawn
from runtime.request import Request


class DraftJobs:
    """One request's calls of its `BranchDraft`, of a ``draft`` model by a ``config`` and a ``controller``. The methods are called
    in this order: ``open``, ``opened``, then every round ``advance``, ``branches`` and ``end_round``."""

    def __init__(
        self,
        draft: tuple[LanguageModel, BranchConfig, Controller],
        request: Request,
        overlap: Overlap,
        clock: PhaseClock,
    ) -> None:
        self._of_decoder = draft
        self._request = request
        self._executor = overlap.executor()
        self._clock = clock
        self._timeline = Timeline(overlap.virtual)
        self._fork = clock.now
        self._draft: BranchDraft  # once the prompt is cached

    def open(self, chance: Chance) -> None:
        """Begin to cache the prompt, concurrently with what the target does from now on; the draft draws from ``chance``."""
        self._fork = self._clock.now
        self._executor.submit(self._open, replace(self._request, randomness=spawn(chance)))

    def _open(self, request: Request) -> list[Stretch]:
        self._draft = BranchDraft(*self._of_decoder, request)
        return self._draft.begin(request.prompt)

    def opened(self) -> None:
        """Wait until the prompt is cached."""
        join = self._own_work()
        self._joined(join, self._executor.result())

    def advance(self, verdict: Verdict, root: Root, remaining: int) -> Pending:
        """The next pending block; the branches behind it are under way."""
        self._own_work()
        self._executor.submit(self._draft.advance, verdict, _known(root), remaining)
        self._executor.submit(self._draft.branch)
        pending: Pending = self._executor.result()
        self._clock.lap("draft")
        self._timeline.lane("target", [("wait", start, end) for _, start, end in self._clock.stretches()])
        self._timeline.lane("draft", pending.stretches)
        self._fork = self._clock.now
        return pending

    def branches(self) -> Branches:
        """What was drafted during the target's pass, since ``advance``."""
        join = self._own_work()
        branches: Branches = self._executor.result()
        self._joined(join, branches.stretches)
        return branches

    def end_round(self, record: RoundRecord) -> None:
        """Write the round's timeline into its record."""
        self._own_work()
        record.timeline, record.overlapped = self._timeline.end_round()

    def close(self) -> None:
        """The request is over, or given up."""
        self._executor.close()

    def _own_work(self) -> float:
        """Note what the target's side did up to now."""
        self._timeline.lane("target", self._clock.stretches())
        return self._clock.now

    def _joined(self, join: float, stretches: list[Stretch]) -> None:
        virtual = self._timeline.virtual
        self._clock.lap("draft" if virtual else "wait")
        waited = self._clock.stretches()
        self._timeline.lane("target", [] if virtual else waited)
        self._timeline.beside(stretches, self._fork, join)


def _known(root: Root) -> Root:
    """What the controller may know before it decides on a surviving branch: of the last round the verdict, but not how far its
    branches were drafted, which depends on tokens that nobody verified."""
    previous = root.previous
    if previous is None:
        return root
    known = RoundRecord(
        drafted=previous.submitted,
        accepted=previous.accepted,
        emitted=previous.emitted,
        ends_segment=previous.ends_segment,
        bypassed=previous.bypassed,
    )
    return replace(root, previous=known)


class Timeline:
    """A request's spans, round by round: when draft and target worked, on one clock.

    Where both really run side by side, the clock is the wall's. Where one runs after the other, it is virtual: the branch job is
    shown from when the target's pass began, and everything behind the two is moved ahead by the shorter of them,

        overlapped = min(branch job, target's work since its pass began).
    """

    def __init__(self, virtual: bool) -> None:
        self.virtual = virtual
        self._origin = perf_counter()
        self._spans: list[Span] = []
        self.overlapped = 0.0  # seconds of this round

    def lane(self, lane: str, stretches: Sequence[Stretch], moved: float = 0.0) -> None:
        """Add stretches of a lane, ``moved`` seconds later than they were."""
        self._spans += [
            Span(lane, phase, start - self._origin + moved, end - self._origin + moved)
            for phase, start, end in stretches
        ]

    def beside(self, stretches: Sequence[Stretch], fork: float, join: float) -> None:
        """Add the draft's job beside the target's work, which went on from ``fork`` to ``join``."""
        if not self.virtual or not stretches:
            self.lane("draft", stretches)
            return
        start, end = stretches[0][1], stretches[-1][2]
        self.lane("draft", stretches, moved=fork - start)
        shorter = min(end - start, join - fork)
        waited = (end - start) - shorter
        if waited > 0:
            self.lane("target", [("wait", join, join + waited)])
        self._origin += shorter
        self.overlapped += shorter

    def end_round(self) -> tuple[list[Span], float]:
        """The round's spans, and what both at once would have saved; starts afresh."""
        spans, overlapped = self._spans, self.overlapped
        self._spans, self.overlapped = [], 0.0
        return spans, overlapped
