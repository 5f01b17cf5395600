"""An executor that runs nothing beside anything: a call runs when its result is asked for."""

from collections import deque
from time import perf_counter
from typing import Any

from runtime.overlap.executor import Reply


class InTurn:
    """`Executor` over ``service``, in the caller's own thread."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._calls: deque[tuple[str, tuple[Any, ...]]] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        self._calls.append((method, arguments))

    def result(self) -> Reply:
        assert self._calls, "no call is outstanding"
        method, arguments = self._calls.popleft()
        started = perf_counter()
        value = getattr(self._service, method)(*arguments)
        return Reply(value, started, perf_counter())

    def forget(self) -> None:
        self._calls.clear()

    def close(self) -> None:
        self._calls.clear()
