"""Which number format a model decodes fastest in.

Half the bytes are not always half the time: on CPUs a small draft's matrix products cost more in bfloat16 than in float32, and a
target's verification pass over several rows costs up to twice a single row in float32. So both are timed.
"""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from runtime.compact.forward import linear
from runtime.dtypes import native_dtype

DRAFT_ROWS, TARGET_ROWS = (1,), (1, 5, 9)  # a draft step; a plain step and verification passes
MOST_BYTES = 2**28  # of matrices timed per format: more than a cache holds says no more
REPEATS = 5


def fastest_dtype(config: Any, device: torch.device, rows: Sequence[int]) -> torch.dtype:
    """The format in which passes over ``rows`` nodes take the least time together, by the matrix products of a ``config``.

    On accelerators, and where bfloat16 is not native, there is nothing to weigh: the native format.
    """
    native = native_dtype(device)
    if device.type != "cpu" or native is torch.float32:
        return native
    seconds = {dtype: sum(matrix_seconds(config, dtype, rows)) for dtype in (torch.bfloat16, torch.float32)}
    return min(seconds, key=seconds.__getitem__)


@torch.inference_mode()
def matrix_seconds(config: Any, dtype: torch.dtype, rows: Sequence[int]) -> list[float]:
    """Median seconds on the CPU of a model's matrix products (of at most `MOST_BYTES`), for each number of ``rows``."""
    matrices = _matrices(config, dtype)
    return [_sweep_seconds(matrices, count) for count in rows]


def _sweep_seconds(matrices: Sequence[Tensor], rows: int) -> float:
    inputs = {matrix.shape[1]: torch.ones(rows, matrix.shape[1], dtype=matrix.dtype) for matrix in matrices}
    seconds = []
    for _ in range(REPEATS + 1):  # the first one warms up
        start = perf_counter()
        for matrix in matrices:
            linear(inputs[matrix.shape[1]], matrix, None)
        seconds.append(perf_counter() - start)
    return median(seconds[1:])


def _matrices(config: Any, dtype: torch.dtype) -> list[Tensor]:
    """Matrices [O, I] of the blocks and the head, as the compact forward joins them."""
    hidden = config.hidden_size
    feed_forward = getattr(config, "intermediate_size", None) or 4 * hidden
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    inner = config.num_attention_heads * head_dim
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layer = [
        (inner + 2 * key_heads * head_dim, hidden),
        (hidden, inner),
        (2 * feed_forward, hidden),
        (hidden, feed_forward),
    ]
    layer_bytes = sum(outputs * inputs for outputs, inputs in layer) * dtype.itemsize
    num_layers = max(1, min(config.num_hidden_layers, MOST_BYTES // layer_bytes))
    head_rows = min(config.vocab_size, MOST_BYTES // (hidden * dtype.itemsize))
    shapes = [*layer * num_layers, (head_rows, hidden)]
    return [torch.full(shape, 0.01, dtype=dtype) for shape in shapes]
