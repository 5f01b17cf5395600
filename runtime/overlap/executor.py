"""What runs the draft's methods beside the target, as the decoders see it."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Reply:
    """What a call returned, and when it ran: ``started`` and ``ended`` in seconds of `time.perf_counter`.

    That clock is one for all processes of a machine (CLOCK_MONOTONIC). Work queued on an accelerator may go on after ``ended``.
    """

    value: Any
    started: float
    ended: float


class Executor(Protocol):
    """Runs the methods of one service object in the order they were submitted, beside the caller.

    To be used by one thread. What a call raises, `result` raises; the service can be used again after that.
    """

    def submit(self, method: str, *arguments: Any) -> None:
        """Ask for ``service.method(*arguments)``, without waiting for it."""
        ...

    def result(self) -> Reply:
        """The reply of the oldest call that was neither read nor forgotten; waits for it. There must be one (asserted)."""
        ...

    def forget(self) -> None:
        """Drop all outstanding replies: `result` goes on with the calls submitted later.

        A forgotten call that had not begun may still run or not.
        """
        ...

    def close(self) -> None:
        """End what runs, dropping what is outstanding; again changes nothing. A later `submit` starts afresh."""
        ...
