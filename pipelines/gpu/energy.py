"""Joules of a stretch of work: the board's own counter of energy, read through NVIDIA's management library."""

import ctypes
from collections.abc import Mapping
from functools import partial
from time import perf_counter

import torch

from pipelines.gpu.arms import PRESETS
from pipelines.gpu.bench import Bench
from pipelines.measuring.arm_builder import TimedArm
from pipelines.measuring.arms import Decode
from pipelines.measuring.exactness import GREEDY
from pipelines.measuring.harness import tokens_per_second
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import CHAIN, PLAIN

LIBRARY = "libnvidia-ml.so.1"
WARM_SECONDS, ENERGY_SECONDS = 1.0, 4.0


def joules_per_token(bench: Bench, arms: Mapping[str, TimedArm], rows: Rows) -> dict[str, float]:
    """At temperature 0, of plain decoding, and of the fastest chain and the fastest of either preset by ``rows``; nothing where
    the board does not count."""
    if _millijoules(bench.device) is None:
        return {}
    speed = {name: tokens_per_second(rows, name, 0.0) for name in arms}
    families = [[name for name in arms if arms[name].family == family] for family in (CHAIN, *PRESETS)]
    prompt = bench.trained.prompts[0].tokens
    found = {}
    for name in (PLAIN, *(max(names, key=speed.__getitem__) for names in families)):
        decode = partial(arms[name].run, prompt, GREEDY, 0)
        _repeated(decode, WARM_SECONDS)
        before = _millijoules(bench.device)
        tokens = _repeated(decode, ENERGY_SECONDS)
        after = _millijoules(bench.device)
        assert before is not None and after is not None
        found[name] = (after - before) / 1000 / tokens
    return found


def _repeated(decode: Decode, seconds: float) -> int:
    """Decode again and again for so many ``seconds``, once at least; how many tokens that gave."""
    start, tokens = perf_counter(), len(decode().tokens)
    while perf_counter() - start < seconds:
        tokens += len(decode().tokens)
    return tokens


def _millijoules(device: torch.device) -> int | None:
    """The counter since the driver was loaded; ``None`` where there is none."""
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
