"""Host numbers on a device, without waiting for it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_device(numbers: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """``numbers`` (a list: int64) on ``device``.

    To a CUDA device they are copied from pinned memory in the order of its current stream: a copy from pageable memory would wait
    until the device has done all its work.
    """
    host = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda" or host.is_cuda:
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
