"""The draft process: builds a service, then answers calls of its methods until the other side hangs up.

Started by `runtime.overlap.process` as ``python -P -m runtime.overlap.worker <socket> <memory> <slot bytes> <threads>``.
"""

import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from io import BytesIO
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch

from runtime.overlap.executor import timed
from runtime.overlap.messages import Answer, Channel, slots, travelling

LONGEST_TRACE = 1500  # characters of a traceback's end
LONGEST_TEXT = 500  # characters of the text of an error that cannot travel itself

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
    """Answer the set-up, then calls."""
    answer = _answer(partial(_set_up, connection.recv_bytes()))
    service = None if answer.reply is None else answer.reply.value
    channel.received += 1
    _send(channel, answer._replace(reply=None))  # the service stays here
    del answer
    while True:
        channel.receive()
        _send(channel, _answer(partial(_requested, service, channel)))


def _set_up(pickled: bytes) -> Call:
    with travelling("set up the draft process"):
        factory, arguments = torch.load(BytesIO(pickled), weights_only=False)
    return factory, arguments


def _requested(service: Any, channel: Channel) -> Call:
    method, arguments = channel.read()
    return getattr(service, method), arguments


def _answer(prepare: Callable[[], Call]) -> Answer:
    reply, error, trace = None, None, ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            reply = timed(*prepare())
        except Exception as raised:  # the service's own, whatever it is: the caller's to handle
            error, trace = _picklable(raised), "".join(traceback.format_exception(raised))[-LONGEST_TRACE:]
    warned = [(str(warning.message), warning.category, warning.filename, warning.lineno) for warning in caught]
    return Answer(reply, error, trace, warned)


def _picklable(error: Exception) -> Exception:
    """``error``, or a `RuntimeError` with its text where it would not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class's constructor raises: many cannot be called with `args`
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _send(channel: Channel, answer: Answer) -> None:
    try:
        channel.send(answer)
    except ValueError as refusal:  # then something small that is sure to be pickled
        error: Exception = ValueError(str(refusal)[:LONGEST_TEXT])
        if answer.error is not None:
            error = RuntimeError(f"{type(answer.error).__name__}: {answer.error}"[:LONGEST_TEXT])
        channel.send(answer._replace(reply=None, error=error, warned=[]))


if __name__ == "__main__":
    # Names of the parent's main module are none of this one's: without a module of that name they are refused, not mistaken.
    sys.modules["__main__"] = ModuleType("__main__")
    main()
