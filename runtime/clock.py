"""Where a round's time goes, measured in laps: the time since the last lap belongs to the phase that ends it."""

from time import perf_counter


class PhaseClock:
    """Seconds by phase of the current round."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """End a stretch of work of ``phase``."""
        now = perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def end_round(self) -> dict[str, float]:
        """The round's seconds by phase; starts afresh."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def resume(self) -> None:
        """Forget the time since the last lap (the caller's, between two steps)."""
        self._last = perf_counter()
