"""Where the draft's jobs run: in a thread, on CUDA devices with a stream of its own, or one after the other with the target's.

Events alone order the streams, so the host waits for no device: a call begins on the draft's stream after what the caller had
queued when it submitted it, on every device that it hands tensors of, and what the caller queues after `result` begins after the
call. Where the draft has a device of its own, copies to the target's run on the draft's device, on the caller's stream there.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from predictors.rounds import RoundRecord

Call = Callable[..., Any]


class Executor(Protocol):
    """Runs calls in the order they were submitted. To be used by one thread. What a call raises, `result` raises."""

    def submit(self, call: Call, *arguments: Any) -> None:
        """Queue ``call(*arguments)``, without waiting for it."""

    def result(self) -> Any:
        """Wait for the oldest call that was not read; return its value. There must be one (asserted)."""

    def close(self) -> None:
        """End what runs, dropping what is outstanding; a second time changes nothing."""


class Sequential:
    """Executor without concurrency: a call runs when its result is read."""

    def __init__(self) -> None:
        self._calls: deque[Call] = deque()

    def submit(self, call: Call, *arguments: Any) -> None:
        self._calls.append(partial(call, *arguments))

    def result(self) -> Any:
        assert self._calls, "no call is outstanding"
        return self._calls.popleft()()

    def close(self) -> None:
        self._calls.clear()


class Threaded:
    """Executor in one worker thread.

    Parameters
    ----------
    stream
        The `draft_stream` of the device where calls compute. With one, arguments and values hold their tensors in tuples, lists,
        mappings and dataclasses: only those are kept from being reused by one stream while the other still reads them.
    threads
        Torch threads of the worker; ``None``: as many as torch gives it.
    """

    def __init__(self, stream: "DraftStream | None" = None, threads: int | None = None) -> None:
        self._stream = stream
        begin = None if threads is None else partial(torch.set_num_threads, threads)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draft", initializer=begin)
        self._calls: deque[Future[Any]] = deque()

    def submit(self, call: Call, *arguments: Any) -> None:
        if self._stream is None:
            self._calls.append(self._pool.submit(call, *arguments))
        else:
            ready = self._stream.hand_over(arguments)
            self._calls.append(self._pool.submit(self._stream.run, call, arguments, ready))

    def result(self) -> Any:
        assert self._calls, "no call is outstanding"
        self._calls[0].exception()  # waits; where that is interrupted, the call is still outstanding
        outcome = self._calls.popleft().result()
        return outcome if self._stream is None else self._stream.take_over(*outcome)

    def close(self) -> None:
        """End what runs as `Executor.close`; wait for a running call, and let the caller's stream wait for what it has queued."""
        self._calls.clear()
        self._pool.shutdown(cancel_futures=True)
        if self._stream is not None:
            self._stream.finish()


def draft_stream(device: torch.device) -> "DraftStream | None":
    """Return a stream for the draft's work on ``device``; ``None`` where there are no streams."""
    return DraftStream(device) if device.type == "cuda" else None


class DraftStream:
    """The draft's high-priority stream, and what passes between it and the caller's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=-1)

    def hand_over(self, arguments: Any) -> list[torch.cuda.Event]:
        """Keep ``arguments`` until the draft's stream has read them; return events of the caller's having written them."""
        devices = {self._device}
        for tensor in _tensors(arguments):
            devices.add(tensor.device)
            if tensor.device == self._device:
                tensor.record_stream(self._stream)
        return [torch.cuda.current_stream(device).record_event() for device in devices]

    def run(self, call: Any, arguments: Any, ready: list[torch.cuda.Event]) -> tuple[Any, torch.cuda.Event]:
        """Run a call in the thread: return its value or error, and the event after which the draft's stream is done with it."""
        with torch.cuda.stream(self._stream):
            for written in ready:
                self._stream.wait_event(written)
            try:
                outcome: Any = call(*arguments)
            except Exception as error:  # the service's own: the caller's stream must wait for the call all the same
                outcome = error
            return outcome, self._stream.record_event()

    def finish(self) -> None:
        """Make what the caller queues from now on begin after all that was queued here."""
        torch.cuda.current_stream(self._device).wait_event(self._stream.record_event())

    def take_over(self, outcome: Any, done: torch.cuda.Event) -> Any:
        """Read an outcome of `run`, once the caller's stream has waited for it."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(done)
        if isinstance(outcome, Exception):
            raise outcome
        for tensor in _tensors(outcome):
            tensor.record_stream(stream)
        return outcome


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the CUDA tensors in a nest of tuples, lists, mappings and dataclasses."""
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


class Overlap:
    """Configuration ``overlap`` of a decoder, resolved: its draft runs by ``kind`` ``streams``, ``threads`` or ``none``.

    On CPUs, draft and target share torch's threads while they run concurrently (`default_threads`).
    """

    def __init__(self, overlap: str, draft: torch.device, target: torch.device) -> None:
        self.kind = _resolved(overlap, draft, target)
        self._stream = draft_stream(draft)  # one for all requests: what a stream has freed no other gets
        self._target_threads = self._draft_threads = None
        if self.kind == "threads" and draft.type == target.type == "cpu":
            self._target_threads, self._draft_threads = default_threads(torch.get_num_threads())

    @property
    def virtual(self) -> bool:
        """True if the jobs run one after the other, on a virtual clock."""
        return self.kind == "none"

    def executor(self) -> Executor:
        """Return the executor of one request's draft jobs."""
        return Sequential() if self.virtual else Threaded(self._stream, self._draft_threads)

    def target_threads(self) -> AbstractContextManager[None]:
        """Leave the draft its threads while the target works."""
        return nullcontext() if self._target_threads is None else torch_threads(self._target_threads)


def _resolved(overlap: str, draft: torch.device, target: torch.device) -> str:
    streams = draft.type == "cuda"
    if overlap == "auto":
        if streams:
            return "streams"
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return "threads" if cores > 1 or draft.type != "cpu" or target.type != "cpu" else "none"
    if overlap in ("streams", "threads") and (overlap == "streams") != streams:
        other = "threads" if overlap == "streams" else "streams"
        raise ValueError(
            f"overlap {overlap!r} is for drafts {'on' if overlap == 'streams' else 'off'} CUDA devices, and this one is on "
            f"{draft}. Use {other!r} or 'auto'."
        )
    return overlap


def default_threads(cores: int) -> tuple[int, int]:
    """Share ``cores`` between target and draft: a quarter of them drafts, the target has the rest, each at least one.

    Examples
    --------
    >>> default_threads(8)
    (6, 2)
    """
    draft = max(1, cores // 4)
    return max(1, cores - draft), draft


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run a block with ``count`` torch threads."""
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
