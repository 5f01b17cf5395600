"""Devices: number format, being out of memory, copies to and from them without waiting, and the clock of a round's phases."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor


def on_device(numbers: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Put ``numbers`` (a list: int64) on ``device``.

    To a CUDA device they are copied from pinned memory in the order of its current stream: a copy from pageable memory would wait
    until the device has done all its work.
    """
    host = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda" or host.is_cuda:
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def read_later(numbers: Tensor) -> Callable[[], list[int]]:
    """Copy int64 ``numbers`` [N] to the host; the function returned waits for work queued before this call, for none after it."""
    if not numbers.is_cuda:
        return numbers.tolist
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(numbers.device))

    def read() -> list[int]:
        copied.synchronize()
        found: list[int] = host.tolist()
        return found

    return read


@contextmanager
def own_settings(devices: Iterable[torch.device]) -> Iterator[None]:
    """Run a block in which a caller's ``torch.autocast`` and default device decide nothing."""
    with ExitStack() as off:
        if torch.get_default_device().type != "cpu":
            off.enter_context(torch.device("cpu"))
        for kind in {device.type for device in devices}:
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                off.enter_context(torch.autocast(kind, enabled=False))
        yield


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether ``error`` means that a device has no memory left; on a CPU PyTorch raises a plain `RuntimeError` for that."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def native_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 where ``device`` multiplies it natively, else float32."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # torch has no public check: without native units bfloat16 is emulated, correct and several times slower
        native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.bfloat16 if native else torch.float32


class PhaseClock:
    """Seconds by phase of the current round. On an accelerator a phase ends when its work is queued, unless laps wait for it."""

    waits_for: ClassVar[Sequence[torch.device]] = ()  # CUDA devices, where single phases are measured

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = perf_counter()

    @property
    def now(self) -> float:
        """Time at which the last lap ended, by `time.perf_counter`."""
        return self._last

    def lap(self, phase: str) -> None:
        """End a stretch of work of ``phase``."""
        for device in self.waits_for:
            torch.cuda.synchronize(device)
        now = perf_counter()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def end_round(self) -> dict[str, float]:
        """Return the round's seconds by phase, and start afresh."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def resume(self) -> None:
        """Forget the time since the last lap (the caller's, between two steps)."""
        self._last = perf_counter()
