"""A clock of a round's phases, measured in laps: the time since the last lap belongs to the phase that ends it."""

from collections.abc import Sequence
from time import perf_counter
from typing import ClassVar

import torch


class PhaseClock:
    """Seconds by phase of the current round. On an accelerator a phase ends when its work is queued, unless laps wait for it."""

    waits_for: ClassVar[Sequence[torch.device]] = ()  # CUDA devices, where single phases are measured

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = perf_counter()

    @property
    def now(self) -> float:
        """Time at which the last lap ended, by `time.perf_counter`."""
        return self._last

    def lap(self, phase: str) -> None:
        """End a stretch of work of ``phase``."""
        for device in self.waits_for:
            torch.cuda.synchronize(device)
        now = perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def end_round(self) -> dict[str, float]:
        """Return the round's seconds by phase, and start afresh."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def resume(self) -> None:
        """Forget the time since the last lap (the caller's, between two steps)."""
        self._last = perf_counter()
