"""What the device can do at most: how fast it moves bytes and multiplies, and what that makes of a pass and of rounds.

bandwidth   twice the bytes of a large copy on the device, over its median seconds
arithmetic  2 n^3 operations of a square product in the models' number format, over its median seconds
bound       of a pass over N tokens after L cached ones: the larger of its bytes over the bandwidth (every matrix and L rows of
            keys and values, each read once) and its operations over the arithmetic rate
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from pipelines.gpu.pairs import Sized
from pipelines.measuring.harness import BY_ROUND
from pipelines.measuring.names import branch_arm
from runtime.latency.cells import seconds_of

COPY_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
PRODUCT = {"cuda": 8192, "cpu": 512}
REPEATS = 20


@dataclass(frozen=True)
class Ceilings:
    """``bandwidth`` in bytes a second (read and written), ``arithmetic`` in operations a second, ``itemsize`` of a weight."""

    bandwidth: float
    arithmetic: float
    itemsize: int

    def pass_seconds(self, model: Sized, tokens: int, context: int) -> float:
        """Least seconds of a pass over ``tokens`` after ``context`` cached ones."""
        shape = model.shape
        numbers = model.parameters + context * 2 * shape.layers * shape.kv_heads * shape.head_dim  # weights and cache
        attended = 4 * shape.layers * shape.heads * shape.head_dim * (context + tokens)
        operations = tokens * (2 * model.parameters + attended)
        return max(numbers * self.itemsize / self.bandwidth, operations / self.arithmetic)

    def rounds_seconds(self, target: Sized, draft: Sized, row: Mapping[str, Any]) -> float:
        """Least seconds of a decode's rounds: passes alone, and of a branch stage the longer job."""
        beside, total = branch_arm(row["arm"]) is not None, 0.0
        for made in row[BY_ROUND][1:]:
            idle, later = made["idle_levels"], made["levels"] - made["idle_levels"]
            verified = self.pass_seconds(target, 1 + made["submitted"], made["context"])
            step = self.pass_seconds(draft, 1, made["context"])
            total += idle * step + (max(verified, later * step) if beside else verified + later * step)
        return total


def measured_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure both on ``device``."""
    size = PRODUCT[device.type]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    arithmetic = 2 * size**3 / median_seconds(lambda: left @ right, device, REPEATS)
    source = torch.randn(COPY_BYTES[device.type] // dtype.itemsize, device=device, dtype=dtype)
    copy = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / median_seconds(lambda: copy.copy_(source), device, REPEATS)
    return Ceilings(bandwidth, arithmetic, dtype.itemsize)


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of ``work`` alone, after an untimed call."""
    work()
    return median(seconds_of(work, device) for _ in range(repeats))
