"""What the device can do at most: how fast it moves bytes and multiplies, and what that makes of a pass.

bandwidth   twice the bytes of a large copy on the device, over its median seconds
arithmetic  2 n^3 operations of a square product in the models' number format, over its median seconds
bound       of a pass over N tokens behind L cached ones: the larger of its bytes over the bandwidth (weights and L rows of keys
            and values, each read once) and its operations over the arithmetic rate
"""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel

from runtime.latency.cells import seconds_of

COPY_BYTES = {"cuda": 4 << 30, "cpu": 64 << 20}
PRODUCT = {"cuda": 8192, "cpu": 512}
REPEATS = 20


@dataclass(frozen=True)
class Ceilings:
    """``bandwidth`` in bytes a second (read and written), ``arithmetic`` in operations a second."""

    bandwidth: float
    arithmetic: float

    def pass_seconds(self, model: PreTrainedModel, tokens: int, context: int) -> float:
        """Least seconds of a pass over ``tokens`` behind ``context`` cached ones."""
        return max(
            pass_bytes(model, context) / self.bandwidth, pass_operations(model, tokens, context) / self.arithmetic
        )

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def measured_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Measure both on ``device``."""
    size = PRODUCT[device.type]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    arithmetic = 2 * size**3 / _median(lambda: left @ right, device)
    return Ceilings(_copied(COPY_BYTES[device.type] // dtype.itemsize, device, dtype), arithmetic)


def _copied(count: int, device: torch.device, dtype: torch.dtype) -> float:
    """Bytes a second of a copy of ``count`` random numbers, read and written."""
    source = torch.randn(count, device=device, dtype=dtype)
    copy = torch.empty_like(source)
    return 2 * source.nbytes / _median(lambda: copy.copy_(source), device)


def pass_bytes(model: PreTrainedModel, context: int) -> int:
    """Bytes that a pass behind ``context`` cached tokens reads at least: the blocks' weights, the head and the cache."""
    return _matrix_parameters(model) * model.dtype.itemsize + context * _row_bytes(model)


def pass_operations(model: PreTrainedModel, tokens: int, context: int) -> int:
    """Multiplications and additions of a pass over ``tokens``."""
    config = model.config
    attended = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * (context + tokens)
    return tokens * (2 * _matrix_parameters(model) + attended)


def _matrix_parameters(model: PreTrainedModel) -> int:
    blocks = sum(weight.numel() for weight in model.model.layers.parameters())
    return blocks + model.lm_head.weight.numel()


def _row_bytes(model: PreTrainedModel) -> int:
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize


def _median(work: Any, device: torch.device) -> float:
    work()
    return median(seconds_of(work, device) for _ in range(REPEATS))
