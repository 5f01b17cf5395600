"""An executor in a process of its own, with its own threads and its own interpreter lock."""

import sys
from collections.abc import Callable
from typing import Any

from runtime.overlap.child import Child, DraftProcessDied
from runtime.overlap.executor import Reply
from runtime.overlap.slab import SLOTS, rounded

__all__ = ["DraftProcess", "DraftProcessDied"]


class DraftProcess:
    """`Executor` over the service that ``factory(*arguments)`` builds in a child process, started by the first `submit`.

    At most `SLOTS` calls are outstanding at a time. The service's warnings and errors come out of `result`; an error that cannot
    be pickled comes as a `RuntimeError` with its text. Whatever ends this process or object ends the child.

    Parameters
    ----------
    factory, arguments
        Builds the service. Both go by value, so an importable function or class and what can be pickled.
    threads
        Torch threads of the child.
    slot_bytes
        Largest message: the tensors of a call's arguments or of its value, and the pickle of everything else in it.

    Raises
    ------
    ValueError
        On Windows; by `submit` where the factory, its arguments or a call's cannot be sent to another process.
    OSError
        By `submit`, where shared memory has too little room.
    DraftProcessDied
        By `submit` and `result`, where the child ended; `restart` lets the next `submit` start another one.

    Notes
    -----
    An interruption (`KeyboardInterrupt`) while `result` waits loses nothing: the call is still outstanding. One that falls into
    the microseconds in which an announcement is read or written leaves in doubt whether it was. Then the exchange counts as
    broken, and `forget` or the next `submit` ends the child, to be replaced.

    Examples
    --------
    >>> draft = DraftProcess(dict, ([("gamma", 8)],), threads=1, slot_bytes=1 << 16)
    >>> draft.submit("get", "gamma")
    >>> draft.result().value
    8
    >>> draft.close()
    """

    def __init__(self, factory: Callable[..., Any], arguments: tuple[Any, ...], threads: int, slot_bytes: int) -> None:
        if sys.platform == "win32":
            raise ValueError("there is no draft process on Windows; decode with overlap: none or streams.")
        self._factory = factory
        self._arguments = arguments
        self._threads = threads
        self._slot_bytes = rounded(slot_bytes)
        self._child: Child | None = None
        self._next = 0  # the reply that is read next
        self._seen: dict[Any, Any] = {}

    def submit(self, method: str, *arguments: Any) -> None:
        """As `Executor.submit`; waits for the child to start, and for forgotten calls whose slots are needed."""
        child = self._running()
        assert child.sent - self._next < SLOTS, f"more than {SLOTS} calls outstanding"
        while child.sent - child.received >= SLOTS:
            child.receive()
        child.send((method, arguments))

    def result(self) -> Reply:
        child = self._child
        assert child is not None and self._next < child.sent, "no call is outstanding"
        while child.received <= self._next:
            child.receive()
        self._next += 1
        return child.read().reply(self._seen)

    def forget(self) -> None:
        if self._child is None:
            return
        if self._child.torn:
            self.restart()
        else:
            self._next = self._child.sent

    def restart(self) -> None:
        """Kill what is left of the child, with all that is outstanding; the next `submit` starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def close(self) -> None:
        """As `Executor.close`; a call that is running has `child.GRACE` seconds to end."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    def _running(self) -> Child:
        if self._child is not None and self._child.torn:
            self.restart()
        if self._child is None:
            self._child = Child(self._factory, self._arguments, self._threads, self._slot_bytes)
            self._next = self._child.sent
        return self._child
