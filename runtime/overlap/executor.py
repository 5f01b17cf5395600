"""What runs the draft's methods beside the target, as the decoders see it: in turn, in a thread, or in a process of its own
(`runtime.overlap.process`).

On CUDA devices the thread works on a stream of its own. Events alone order the streams, so the host waits for no device: a call
begins on the draft's stream after what the caller had queued when it submitted it, on every device that it hands tensors of, and
what the caller queues after `result` begins after the call. Where the draft has a device of its own, copies to the target's run
on the draft's device, on the caller's stream there.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from predictors.rounds import RoundRecord


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

    def result(self) -> Reply:
        """The reply of the oldest call that was not read; waits for it. There must be one (asserted)."""

    def close(self) -> None:
        """End what runs, dropping what is outstanding; again changes nothing."""


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

    def close(self) -> None:
        self._calls.clear()


def timed(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Reply:
    """The reply to a call that runs now, in this thread."""
    started = perf_counter()
    value = call(*arguments)
    return Reply(value, started, perf_counter())


class Beside:
    """`Executor` over ``service`` in one worker thread.

    Parameters
    ----------
    service
        The object whose methods run.
    stream
        The `draft_stream` of the device where it computes. With one, arguments and values hold their tensors in tuples, lists,
        mappings and dataclasses: only those are kept from being reused by one stream while the other still reads them.
    """

    def __init__(self, service: Any, stream: "DraftStream | None") -> None:
        self._service = service
        self._stream = stream
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draft")
        self._calls: deque[Future[Any]] = deque()

    def submit(self, method: str, *arguments: Any) -> None:
        call = getattr(self._service, method)
        if self._stream is None:
            self._calls.append(self._pool.submit(timed, call, arguments))
        else:
            ready = self._stream.hand_over(arguments)
            self._calls.append(self._pool.submit(self._stream.run, call, arguments, ready))

    def result(self) -> Reply:
        assert self._calls, "no call is outstanding"
        self._calls[0].exception()  # waits; where that is interrupted, the call is still outstanding
        outcome = self._calls.popleft().result()
        return outcome if self._stream is None else self._stream.take_over(*outcome)

    def close(self) -> None:
        """As `Executor.close`; waits for a call that is running, and the caller's stream for what it has queued."""
        self._calls.clear()
        self._pool.shutdown(cancel_futures=True)
        if self._stream is not None:
            self._stream.finish()


def draft_stream(device: torch.device) -> "DraftStream | None":
    """A stream for the draft's work on ``device``; none where there are no streams."""
    return DraftStream(device) if device.type == "cuda" else None


class DraftStream:
    """The draft's high-priority stream, and what passes between it and the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)

    def hand_over(self, arguments: Any) -> list[torch.cuda.Event]:
        """Keep ``arguments`` until the draft's stream has read them; returns when the caller's streams have written them."""
        devices = {self._device}
        for tensor in _tensors(arguments):
            devices.add(tensor.device)
            if tensor.device == self._device:
                tensor.record_stream(self._stream)
        return [torch.cuda.current_stream(device).record_event() for device in devices]

    def run(self, call: Any, arguments: Any, ready: list[torch.cuda.Event]) -> tuple[Any, torch.cuda.Event]:
        """In the thread: the reply, or what the call raised, and when the draft's stream is done with it."""
        with torch.cuda.stream(self._stream):
            for written in ready:
                self._stream.wait_event(written)
            try:
                outcome: Any = timed(call, arguments)
            except Exception as error:  # the service's own: the caller's stream must wait for the call all the same
                outcome = error
            return outcome, self._stream.record_event()

    def finish(self) -> None:
        """What the caller queues from now on begins after all that was queued here."""
        torch.cuda.current_stream(self._device).wait_event(self._stream.record_event())

    def take_over(self, outcome: Any, done: torch.cuda.Event) -> Reply:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(done)
        if isinstance(outcome, Exception):
            raise outcome
        for tensor in _tensors(outcome.value):
            tensor.record_stream(stream)
        return outcome


def _tensors(value: Any) -> Iterator[Tensor]:
    """The CUDA tensors in a nest of tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        if value.is_cuda:
            yield value
        return
    if isinstance(value, RoundRecord):  # numbers alone, and many of them
        return
    parts: Any = ()
    if isinstance(value, tuple | list):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    for part in parts:
        yield from _tensors(part)


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
