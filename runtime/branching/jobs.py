"""The draft's jobs of one request, wherever they run, and the request's timeline.

A draft process that dies takes its branches along, never a token: the pending block in hand is still verified, and the next round
begins with a fresh process over everything emitted so far.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from predictors.rounds import RoundRecord, Span
from predictors.signals import Root
from runtime.branching.exchange import NO_BRANCHES, Branches, Pending, Verdict
from runtime.branching.host import DraftHost
from runtime.clock import PhaseClock, Stretch
from runtime.overlap.process import DraftProcess, DraftProcessDied
from runtime.randomness import Chance, spawn
from runtime.request import Request

RESTARTS = 3  # of a dying draft process, within one request


class DraftJobs:
    """One request's calls of its `DraftService`. The methods are called in this order: ``open``, ``opened``, then every round
    ``advance``, ``branches`` and ``end_round``."""

    def __init__(self, host: DraftHost, request: Request, chance: Chance, clock: PhaseClock) -> None:
        self._host = host
        self._executor = host.begin(self)
        self._request = request
        self._chance = chance
        self._clock = clock
        self._timeline = Timeline(host.virtual)
        self._fork = clock.now
        self._dead = False
        self._restarts = 0

    def open(self) -> None:
        """Begin to cache the prompt, beside what the target does from now on."""
        self._fork = self._clock.now
        try:
            self._executor.submit("open", replace(self._request, randomness=spawn(self._chance)))
        except DraftProcessDied:  # since the last request
            self._dead = True

    def opened(self) -> None:
        """Wait until the prompt is cached."""
        join = self._own_work()
        self._joined(join, self._answer() or [])

    def advance(self, verdict: Verdict, root: Root, remaining: int, text: list[int]) -> Pending:
        """The next pending block; the branches behind it are under way. ``text``: all committed tokens."""
        self._host.require(self)
        self._own_work()
        root = self._told(root)
        while True:
            try:
                if self._dead:
                    self._restart(text[:-1])
                    verdict, root = Verdict((), text[-1]), _without_branch(root)
                self._executor.submit("advance", verdict, root, remaining)
                self._executor.submit("branch")
                pending: Pending = self._executor.result().value
                break
            except DraftProcessDied:
                self._dead = True
        self._clock.lap("draft")
        self._timeline.lane("target", [("wait", start, end) for _, start, end in self._clock.stretches()])
        self._timeline.lane("draft", pending.stretches)
        self._fork = self._clock.now
        return pending

    def _told(self, root: Root) -> Root:
        """What the controller may know before it decides on a surviving branch: of the last round the verdict, but not how far
        its branches were drafted, which depends on tokens that nobody verified; states only if it reads them."""
        if not self._host.layers:
            root = replace(root, hidden_KD=None, embedding_E=None)
        previous = root.previous
        if previous is None:
            return root
        told = RoundRecord(
            drafted=previous.submitted,
            accepted=previous.accepted,
            emitted=previous.emitted,
            ends_segment=previous.ends_segment,
            bypassed=previous.bypassed,
        )
        return replace(root, previous=told)

    def branches(self) -> Branches:
        """What was drafted beside the target since ``advance``; nothing if the process died."""
        self._host.require(self)
        join = self._own_work()
        branches: Branches = self._answer() or NO_BRANCHES
        self._joined(join, branches.stretches)
        return branches

    def _answer(self) -> Any:
        """What the oldest call returned; ``None`` if the process died."""
        try:
            return None if self._dead else self._executor.result().value
        except DraftProcessDied:
            self._dead = True
            return None

    def end_round(self, record: RoundRecord) -> None:
        """Write the round's timeline into its record."""
        self._own_work()
        record.timeline, record.overlapped = self._timeline.end_round()

    def close(self) -> None:
        """The request is over, or given up."""
        self._host.end(self, self._executor)

    def _own_work(self) -> float:
        """Note what the target's side did up to now."""
        self._timeline.lane("target", self._clock.stretches())
        return self._clock.now

    def _joined(self, join: float, stretches: list[Stretch]) -> None:
        self._clock.lap("draft" if self._host.virtual else "wait")
        waited = self._clock.stretches()
        self._timeline.lane("target", [] if self._host.virtual else waited)
        self._timeline.beside(stretches, self._fork, join)

    def _restart(self, prompt: list[int]) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise RuntimeError(
                f"the draft process died {self._restarts} times within one request; decode with overlap 'none' instead."
            )
        warnings.warn(
            "the draft process died; a fresh one goes on after the tokens emitted so far. Nothing is lost but time.",
            stacklevel=2,
        )
        assert isinstance(self._executor, DraftProcess), "only a process dies"
        self._executor.restart()
        emitted = len(prompt) - len(self._request.prompt)
        left = self._request.max_new_tokens - emitted
        request = replace(self._request, prompt=prompt, max_new_tokens=left, randomness=spawn(self._chance))
        self._executor.submit("open", request)
        self._executor.result()
        self._dead = False


def _without_branch(root: Root) -> Root:
    """``root`` as if no branch had survived: the one that did died with its process."""
    return root if root.previous is None else replace(root, previous=replace(root.previous, ends_segment=True))


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
