"""Joules of a stretch of work: the board's own counter of energy, read through NVIDIA's management library."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

LIBRARY = "libnvidia-ml.so.1"


@dataclass
class Energy:
    """``joules`` of the stretch; ``None`` where the board does not count, or there is none."""

    joules: float | None = None


@contextmanager
def measured_energy(device: torch.device) -> Iterator[Energy]:
    """Read the counter of ``device`` before and behind the block."""
    energy = Energy()
    before = _millijoules(device)
    yield energy
    after = _millijoules(device)
    if before is not None and after is not None:
        energy.joules = (after - before) / 1000


def _millijoules(device: torch.device) -> int | None:
    """The counter since the driver was loaded."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    handle, count = ctypes.c_void_p(), ctypes.c_ulonglong()
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    failed = failed or library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count))
    return None if failed else count.value
