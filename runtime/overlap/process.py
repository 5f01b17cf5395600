"""An executor in a process of its own, with its own threads and its own interpreter lock."""

import os
import select
import signal
import socket
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

import torch

from runtime.overlap.executor import Reply
from runtime.overlap.messages import LEAST_SLOT, SLOTS, Answer, Channel, aligned, reserved, slots, travelling

GRACE = 1.0  # seconds a child has to end by itself once the connection is closed
ENDING = 10.0  # seconds one that hung up by itself has to end, so that one can say how


class DraftProcessDied(RuntimeError):  # noqa: N818 - an event, not a mistake
    """The draft process ended, or the exchange with it broke off; what was outstanding is lost."""


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
    broken, and the next `submit` replaces the child.

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
        self._options = (factory, arguments), threads, aligned(max(slot_bytes, LEAST_SLOT))
        self._child: Child | None = None
        self._next = 0  # the reply that is read next
        self._seen: dict[Any, Any] = {}  # a warning registry, for filters that warn once

    def start(self) -> "Child":
        """The child; one that has to be started, or replaced as the exchange with it broke, is waited for until its service is
        built. Raises as `submit`."""
        if self._child is not None and self._child.channel.torn:
            self.restart()
        if self._child is None:
            self._child = Child(*self._options)
            self._next = self._child.channel.sent
        return self._child

    def submit(self, method: str, *arguments: Any) -> None:
        """As `Executor.submit`; waits for the child to start, and for forgotten calls whose slots are needed."""
        child = self.start()
        channel = child.channel
        assert channel.sent - self._next < SLOTS, f"more than {SLOTS} calls outstanding"
        while channel.sent - channel.received >= SLOTS:
            child.receive()
        child.send((method, arguments))

    def result(self) -> Reply:
        child = self._child
        assert child is not None and self._next < child.channel.sent, "no call is outstanding"
        while child.channel.received <= self._next:
            child.receive()
        self._next += 1
        reply = child.answer(self._seen).reply
        assert reply is not None, "every answer but the set-up's has one"
        return reply

    def forget(self) -> None:
        """Drop all outstanding replies: `result` goes on with the calls submitted later. A forgotten call that had not begun runs
        all the same."""
        if self._child is not None:
            self._next = self._child.channel.sent

    def restart(self) -> None:
        """Kill what is left of the child, with all that is outstanding; the next `submit` starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def close(self) -> None:
        """As `Executor.close`; a call that is running has `GRACE` seconds to end. A later `submit` starts another child."""
        child, self._child = self._child, None
        if child is not None:
            child.end()


class Child:
    """A running draft process: it ends when this object goes, or its process does, however it does.

    The set-up travels by value (`torch.save`: tensors that share memory go once, and the parent's stay where they are).
    """

    def __init__(self, set_up: Any, threads: int, slot_bytes: int) -> None:
        pickled = BytesIO()
        with travelling("set up the draft process"):
            torch.save(set_up, pickled)
        with reserved(slot_bytes) as memory:
            requests, replies = slots(memory, slot_bytes)
            self._process, self._connection = _start(memory, slot_bytes, threads)
        self.end = weakref.finalize(self, _end, self._process, self._connection)
        self.channel = Channel(self._connection, requests, replies)
        self._death: str | None = None
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        with ExitStack() as undo:
            undo.callback(self.kill)
            with self._whole():
                self._connection.send_bytes(pickled.getbuffer())
            self.channel.sent += 1
            self.receive()
            self.answer({})
            undo.pop_all()

    def send(self, message: Any) -> None:
        """Raises `DraftProcessDied`, or as `Channel.send`."""
        with self._whole():
            self.channel.send(message)

    def receive(self) -> None:
        """Wait for the next reply. Raises `DraftProcessDied`."""
        with self._whole():
            self._poll.poll()  # waits, and takes nothing that an interruption could lose
            self.channel.receive()

    def answer(self, seen: dict[Any, Any]) -> Answer:
        """The one last received. Warns and raises here what was warned and raised there, by the warning registry ``seen``."""
        answer: Answer = self.channel.read()
        for text, category, file, line in answer.warned:
            warnings.warn_explicit(text, category, file, line, registry=seen)
        if answer.error is not None:
            answer.error.add_note(f"In the draft process:\n{answer.trace}")
            raise answer.error
        return answer

    def kill(self) -> None:
        """End the process at once."""
        if self.end.alive:
            self._process.kill()
        self.end()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """`DraftProcessDied` where the exchange is broken already, or breaks off within the block."""
        if self._death is not None:
            raise DraftProcessDied(self._death)
        if self.channel.torn:
            raise DraftProcessDied("the exchange with the draft process was interrupted in the middle of a message.")
        try:
            yield
        except (EOFError, ConnectionError) as error:
            self._death = f"the draft process {_ending(self._process)}."
            self.channel.torn = False  # only broken off: `submit` says so until somebody restarts it
            raise DraftProcessDied(self._death) from error


def _start(memory: int, slot_bytes: int, threads: int) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    with theirs:  # the child's copy is the only one: when either process dies, the other's connection ends
        options = [theirs.fileno(), memory, slot_bytes, threads]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runtime.overlap.worker", *map(str, options)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            pass_fds=(theirs.fileno(), memory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what the parent prints is its own
            start_new_session=True,  # a terminal's Ctrl-C does not reach it
        )
    return process, Connection(ours.detach())


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """Hang up and see the process end, at the latest when it is killed after `GRACE`."""
    connection.close()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(ENDING)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
