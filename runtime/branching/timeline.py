"""When draft and target worked, on one clock.

Where both really run side by side, the clock is the wall's. Where one runs after the other, it is virtual: the branch job is
shown from when the target's pass began, and everything behind the two is moved ahead by the shorter of them,

    overlapped = min(branch job, target's work since its pass began).
"""

from collections.abc import Sequence
from time import perf_counter

from predictors.rounds import Span
from runtime.clock import Stretch


class Timeline:
    """A request's spans, round by round."""

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
