"""What runs the draft's methods beside the target, as the decoders see it; what runs them in turn; how they share the cores."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch


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


class InTurn:
    """`Executor` over ``service`` that runs nothing beside anything: a call runs when its result is asked for."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        self._calls.append((method, arguments))

    def result(self) -> Reply:
        assert self._calls, "no call is outstanding"
        method, arguments = self._calls.popleft()
        return timed(getattr(self._service, method), arguments)

    def forget(self) -> None:
        self._calls.clear()

    def close(self) -> None:
        self._calls.clear()


def timed(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Reply:
    """The reply to a call that runs now, in this thread."""
    started = perf_counter()
    value = call(*arguments)
    return Reply(value, started, perf_counter())


def default_threads(cores: int) -> tuple[int, int]:
    """Torch threads of the target and of the draft: a quarter of ``cores`` drafts, the target has the rest, each at least one.

    Examples
    --------
    >>> default_threads(8)
    (6, 2)
    """
    draft = max(1, cores // 4)
    return max(1, cores - draft), draft


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """``count`` threads within the block."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
