"""Services for the executors' tests: importable, so that a draft process can run them."""

import fcntl
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runtime.overlap.executor import Executor
from runtime.overlap.process import DraftProcess

PATIENCE = 120.0  # seconds until a wait counts as failed
SLOT_BYTES = 1 << 20


@dataclass
class Nest:
    """Tensors inside of other things."""

    name: str
    parts: dict[str, Tensor]


class ToyError(Exception):
    """An error of the service's own."""


class AwkwardError(Exception):
    """Pickles, but cannot be unpickled: its constructor takes more than its ``args``."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class ToyWarning(UserWarning):
    """A warning of the service's own."""


class Joined(nn.Module):
    """Two parameters in one storage."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.arange(6.0).view(2, 3)
        self.first, self.second = nn.Parameter(both[0]), nn.Parameter(both[1])


class Toy:
    """``lock``: a file that is locked for as long as the service's process lives."""

    def __init__(self, model: nn.Module | None = None, lock: Path | str | None = None) -> None:
        self.model = model
        self.calls = 0
        if lock is not None:
            self.held = Path(lock).open("w")  # noqa: SIM115 - for as long as the process lives
            fcntl.flock(self.held, fcntl.LOCK_EX)

    def echo(self, *values: Any) -> Any:
        return values

    def count(self, step: int = 1) -> int:
        self.calls += step
        return self.calls

    def fail(self, text: str) -> None:
        raise ToyError(text)

    def fail_awkwardly(self) -> None:
        raise AwkwardError("left", "right")

    def fail_at_length(self, length: int) -> None:
        raise ToyError("x" * length)

    def warn(self, text: str) -> str:
        warnings.warn(text, ToyWarning, stacklevel=1)
        return text

    def meet(self, folder: Path) -> str:
        """Say that the call has begun, and wait for the caller's word."""
        (folder / "begun").touch()
        wait_for(folder / "go")
        return "met"

    def double(self, number: Any) -> Any:
        return number * 2

    def interrupt(self, folder: Path) -> str:
        """As `meet`, but interrupts the caller once it waits."""
        wait_for(folder / "waiting")
        os.kill(os.getppid(), signal.SIGINT)
        return self.meet(folder)

    def exit(self, code: int) -> None:
        sys.exit(code)

    def zeros(self, count: int) -> Tensor:
        return torch.zeros(count)

    def nothing_picklable(self) -> Any:
        return lambda: None

    def pid(self) -> int:
        return os.getpid()

    def threads(self) -> int:
        return torch.get_num_threads()

    def print(self, text: str) -> None:
        print(text, flush=True)

    def joined(self) -> tuple[bool, Tensor]:
        """Whether the model's parameters are still in one storage, and the second."""
        first, second = self.model.first, self.model.second
        return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr(), second


def value(executor: Executor, method: str, *arguments: Any) -> Any:
    """What one call returns."""
    executor.submit(method, *arguments)
    return executor.result().value


def draft_process(*arguments: Any, factory: Callable[..., Any] = Toy, threads: int = 1) -> DraftProcess:
    """A draft process with slots of `SLOT_BYTES`."""
    return DraftProcess(factory, arguments, threads, SLOT_BYTES)


def failing_factory(text: str) -> Toy:
    """A service that cannot be built."""
    raise ToyError(text)


def wait_for(file: Path, patience: float = PATIENCE) -> None:
    """Return once ``file`` exists."""
    until = time.monotonic() + patience
    while not file.exists():
        if time.monotonic() > until:
            raise TimeoutError(file)
        time.sleep(0.001)


def wait_for_end(lock: Path) -> None:
    """Return once the process that holds ``lock`` has ended (a zombie has)."""
    with lock.open("w") as file:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


class FakeStreams:
    """Stands in for CUDA's streams: ``log`` says what happened, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def stream(self, name: str) -> "FakeStream":
        return FakeStream(name, self.log)


@dataclass
class FakeStream:
    """A stream that logs; as a context it is the current one."""

    name: str
    log: list[str]

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return f"{self.name}'s event"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *raised: Any) -> None:
        self.log.append(f"off {self.name}")


class FakeCudaTensor(Tensor):
    """A tensor that says it is on a CUDA device and logs which stream keeps it."""

    is_cuda = True
    device = torch.device("cuda")

    @staticmethod
    def of(stream_log: list[str], device: str = "cuda") -> "FakeCudaTensor":
        tensor = Tensor._make_subclass(FakeCudaTensor, torch.zeros(1))
        tensor.stream_log, tensor.device = stream_log, torch.device(device)
        return tensor

    def record_stream(self, stream: FakeStream) -> None:
        self.stream_log.append(f"kept for {stream.name}")
