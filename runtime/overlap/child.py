"""The parent's side of a draft process: starting it, exchanging messages with it, noticing its death, ending it."""

import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any

import torch

from runtime.overlap.messages import REMEDY, UNPICKLABLE, Channel
from runtime.overlap.outcome import Outcome
from runtime.overlap.slab import reserved, slots

GRACE = 1.0  # seconds a child has to end by itself once the connection is closed
ENDING = 10.0  # seconds one that hung up by itself has to end, so that one can say how


class DraftProcessDied(RuntimeError):  # noqa: N818 - an event, not a mistake
    """The draft process ended, or the exchange with it broke off; what was outstanding is lost."""


class Child:
    """A running draft process; it ends when this object goes, or its process does, however it does.

    The set-up travels by value (`torch.save`: tensors that share memory go once, and the parent's stay where they are).
    """

    def __init__(self, factory: Callable[..., Any], arguments: tuple[Any, ...], threads: int, slot_bytes: int) -> None:
        set_up = _pickled((factory, arguments))
        with reserved(slot_bytes) as memory:
            requests, replies = slots(memory, slot_bytes)
            self._process, self._connection = _start(memory, slot_bytes, threads)
        self._end = weakref.finalize(self, _end, self._process, self._connection)
        self._death: str | None = None
        self._poll = select.poll()
        self._poll.register(self._connection, select.POLLIN)
        self._channel = Channel(self._connection, requests, replies)
        with ExitStack() as undo:
            undo.callback(self.kill)
            self._set_up(set_up)
            undo.pop_all()

    @property
    def sent(self) -> int:
        """Calls sent."""
        return self._channel.sent

    @property
    def received(self) -> int:
        """Their replies received."""
        return self._channel.received - 1  # the first one answered the set-up

    @property
    def torn(self) -> bool:
        """Whether an interruption in the middle of an announcement broke the exchange off (`Channel`)."""
        return self._channel.torn and self._death is None

    def send(self, message: Any) -> None:
        """Raises `DraftProcessDied`, or as `messages.write`."""
        self._require_whole()
        try:
            self._channel.send(message)
        except ConnectionError as error:
            raise self._died() from error

    def receive(self) -> None:
        """Wait for the next reply, which `read` reads. Raises `DraftProcessDied`."""
        self._require_whole()
        self._poll.poll()  # waits, and takes nothing that an interruption could lose
        try:
            self._channel.receive()
        except (EOFError, ConnectionError) as error:
            raise self._died() from error

    def read(self) -> Outcome:
        """The reply last received."""
        return self._channel.read()

    def end(self) -> None:
        """Hang up and see the process end, at the latest when it is killed after `GRACE`."""
        self._end()

    def kill(self) -> None:
        """End the process at once."""
        if self._end.alive:
            self._process.kill()
        self._end()

    def _set_up(self, pickled: memoryview) -> None:
        try:
            self._connection.send_bytes(pickled)
        except ConnectionError as error:
            raise self._died() from error
        self.receive()
        self.read().reply({})

    def _require_whole(self) -> None:
        if self._death is not None:
            raise DraftProcessDied(self._death)
        if self._channel.torn:
            raise DraftProcessDied("the exchange with the draft process was interrupted in the middle of a message.")

    def _died(self) -> DraftProcessDied:
        self._death = f"the draft process {_ending(self._process)}."
        return DraftProcessDied(self._death)


def _pickled(set_up: Any) -> memoryview:
    stream = BytesIO()
    try:
        torch.save(set_up, stream)
    except UNPICKLABLE as error:
        raise ValueError(f"cannot set up the draft process: {error}. {REMEDY}") from error
    return stream.getbuffer()


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
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
