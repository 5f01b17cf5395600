"""Questions about a device (its number format, whether it is out of memory), and copies to and from it without waiting."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

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
