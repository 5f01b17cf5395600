"""The draft process: builds a service, then answers calls of its methods until the other side hangs up.

Started by `runtime.overlap.child` as ``python -P -m runtime.overlap.worker <socket> <memory> <slot bytes> <threads>``.
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from io import BytesIO
from multiprocessing.connection import Connection
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

from runtime.overlap.messages import REMEDY, UNPICKLABLE, Channel
from runtime.overlap.outcome import Outcome, failure
from runtime.overlap.slab import slots

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def main() -> None:
    """Serve the process that the command line names file descriptors of."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is the parent's to handle
    socket, memory, slot_bytes, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    requests, replies = slots(memory, slot_bytes)
    os.close(memory)
    connection = Connection(socket)
    try:
        serve(connection, Channel(connection, replies, requests))
    except (EOFError, ConnectionError):
        os._exit(0)  # the parent waits for this, or is gone; there is nothing to save, and interpreters end slowly


def serve(connection: Connection, channel: Channel) -> None:
    """Answer the set-up (message 0), which comes through the connection itself, then calls (message i)."""
    outcome = _outcome(partial(_set_up, connection.recv_bytes()))
    service = outcome.value
    _answer(channel, outcome._replace(value=None))
    del outcome
    while True:
        channel.receive()
        _answer(channel, _outcome(partial(_requested, service, channel)))


def _set_up(pickled: bytes) -> Call:
    try:
        factory, arguments = torch.load(BytesIO(pickled), weights_only=False)
    except UNPICKLABLE as error:
        raise ValueError(f"cannot set up the draft process: {error}. {REMEDY}") from error
    return factory, arguments


def _requested(service: Any, channel: Channel) -> Call:
    method, arguments = channel.read()
    return getattr(service, method), arguments


def _outcome(prepare: Callable[[], Call]) -> Outcome:
    value, error, trace = None, None, ""
    started = perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call, arguments = prepare()
            started = perf_counter()
            value = call(*arguments)
        except Exception as raised:  # the service's own, whatever it is: the caller's to handle
            error, trace = failure(raised)
        ended = perf_counter()
    warned = [(str(warning.message), warning.category, warning.filename, warning.lineno) for warning in caught]
    return Outcome(value, error, trace, started, ended, warned)


def _answer(channel: Channel, outcome: Outcome) -> None:
    try:
        channel.send(outcome)
    except ValueError as refusal:
        channel.send(outcome.without_value(refusal))


if __name__ == "__main__":
    # Names of the parent's main module are none of this one's: without a module of that name they are refused, not mistaken.
    sys.modules["__main__"] = ModuleType("__main__")
    main()
