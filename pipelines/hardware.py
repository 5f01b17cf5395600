"""Measure what a device has and does: free memory, bytes copied in a second and read by a pass, joules, launches, idle time.

Joules are the board's own counter, read through NVIDIA's management library; there are none elsewhere.
"""

import ctypes
import math
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.profiler import profile

from runtime.latency.cells import seconds_of, synchronise

COPY_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
REPEATS = 10
LONGEST, NAME = 12, 60  # kinds of work that are told apart, and letters of their names
LIBRARY = "libnvidia-ml.so.1"


def available_memory(device: torch.device) -> int:
    """Bytes that may still be taken on a CUDA device; on any other the machine's own that are available."""
    if device.type != "cuda":
        import psutil  # the benchmark of a GPU goes without

        return int(psutil.virtual_memory().available)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for what comes
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of a large copy on ``device``."""
    source = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    copy = torch.empty_like(source)
    return 2 * source.nbytes / median_seconds(lambda: copy.copy_(source), device)


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Seconds of ``work`` alone, after an untimed call."""
    work()
    return median(seconds_of(work, device) for _ in range(repeats))


def pass_bytes(model: nn.Module) -> int:
    """Bytes of weights that a pass over few tokens reads: every parameter, less an embedding that is not the head, too."""
    inputs, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight  # type: ignore[operator]
    looked_up = 0 if inputs is head else inputs.nbytes
    return sum(parameter.nbytes for parameter in model.parameters()) - looked_up


def joules(device: torch.device) -> float:
    """Energy since the driver was loaded; not a number where nothing counts it."""
    if device.type != "cuda":
        return math.nan
    torch.cuda.synchronize(device)
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return math.nan
    handle, count = ctypes.c_void_p(), ctypes.c_ulonglong()
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
    failed = failed or library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count))
    return math.nan if failed else count.value / 1000


def watched(work: Callable[[], object], device: torch.device, calls: int = 8) -> dict[str, Any]:
    """Launches in a call of ``work``, the share of the time in which ``device`` does nothing, and the milliseconds that it spends
    in a call on each of the `LONGEST` kinds of work."""
    with profile() as seen:
        for _ in range(calls):
            work()
        synchronise(device)
    events = seen.events() or []
    launches = sum("Launch" in event.name for event in events)
    own = [event for event in events if on(device, event)]
    kinds: Counter[str] = Counter()
    for event in own:
        kinds[event.name[:NAME]] += event.time_range.elapsed_us() / 1000 / calls
    spans = sorted((event.time_range.start, event.time_range.end) for event in own)
    begun, end, busy = spans[0][0], spans[0][0], 0.0
    for start, stop in spans:
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    longest = {name: round(spent, 4) for name, spent in kinds.most_common(LONGEST)}
    return {"launches": launches / calls, "idle": 1 - busy / (end - begun), "milliseconds": longest}


def on(device: torch.device, event: Any) -> bool:
    """Tell whether a profiler's event ran on a device of that type."""
    return bool(event.device_type.name == device.type.upper())
