"""Which number format a model decodes fastest in.

Half the bytes are not always half the time: on CPUs a small draft's matrix products cost more in bfloat16 than in float32, and a
target's verification pass over several rows costs up to twice a single row in float32. So both are timed, in turn and on matrices
of the same shapes; where they cost about the same, which one is faster is chance, and the native format stays.
"""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from runtime.compact.products import linear
from runtime.dtypes import native_dtype

Shape = tuple[int, int]  # of a matrix [O, I]

DRAFT_ROWS, TARGET_ROWS = (1,), (1, 5, 9)  # a draft step; a plain step and verification passes
NEEDED = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
FORMATS = (torch.bfloat16, torch.float32)
LEAST_SAVING = 0.15  # of bfloat16's time: what float32 must save to be taken
MOST_BYTES = 2**28  # of matrices timed per format: more than a cache holds says no more
REPEATS = 8


def fastest_dtype(config: Any, device: torch.device, rows: Sequence[int]) -> torch.dtype:
    """The format in which passes over ``rows`` nodes take the least time together, by the matrix products of a ``config``.

    On accelerators, where bfloat16 is not native, and where the config's sizes are not those of a plain transformer, there is
    nothing to weigh: the native format.
    """
    native = native_dtype(device)
    if device.type != "cpu" or native is torch.float32:
        return native
    shapes = matrix_shapes(config)
    if shapes is None:
        return native
    seconds = matrix_seconds(shapes, rows)
    clearly = seconds[torch.float32] <= (1 - LEAST_SAVING) * seconds[torch.bfloat16]
    return torch.float32 if clearly else native


@torch.inference_mode()
def matrix_seconds(shapes: Sequence[Shape], rows: Sequence[int]) -> dict[torch.dtype, float]:
    """Seconds on the CPU of products with all matrices in each format, the quickest turn for each number of ``rows``, summed:
    neighbours on a machine only ever add time."""
    matrices = {dtype: [torch.full(shape, 0.01, dtype=dtype) for shape in shapes] for dtype in FORMATS}
    seconds = dict.fromkeys(FORMATS, 0.0)
    for count in rows:
        turns = [{dtype: _sweep_seconds(matrices[dtype], count) for dtype in FORMATS} for _ in range(REPEATS)]
        for dtype in FORMATS:
            seconds[dtype] += min(turn[dtype] for turn in turns)
    return seconds


def matrix_shapes(config: Any) -> list[Shape] | None:
    """The matrices of blocks and head, as the compact forward joins them; of large models some blocks, or some rows of one.

    They hold `MOST_BYTES` at most in the widest format. ``None`` where the config does not give its sizes as plain numbers.
    """
    sizes = _sizes(config)
    if sizes is None:
        return None
    hidden, num_layers, vocabulary, heads, feed_forward, head_dim, key_heads = sizes
    inner = heads * head_dim
    block = [
        (inner + 2 * key_heads * head_dim, hidden),
        (hidden, inner),
        (2 * feed_forward, hidden),
        (hidden, feed_forward),
    ]
    most = MOST_BYTES // max(dtype.itemsize for dtype in FORMATS)
    *block, head = [_cut(shape, most // (len(block) + 1)) for shape in [*block, (vocabulary, hidden)]]
    room = most - head[0] * head[1]
    return [*block * min(num_layers, room // sum(outputs * inputs for outputs, inputs in block)), head]


def _sizes(config: Any) -> list[int] | None:
    """The sizes that `matrix_shapes` needs, in its order."""
    needed: list[Any] = [getattr(config, name, None) for name in NEEDED]
    if not _plain(needed):
        return None
    hidden, _, _, heads = needed
    defaults = {"intermediate_size": 4 * hidden, "head_dim": hidden // heads, "num_key_value_heads": heads}
    others = [default if (size := getattr(config, name, None)) is None else size for name, default in defaults.items()]
    return [*needed, *others] if _plain(others) else None


def _plain(sizes: Sequence[Any]) -> bool:
    return all(type(size) is int and size > 0 for size in sizes)


def _cut(shape: Shape, elements: int) -> Shape:
    """A matrix with at most so many ``elements``, by fewer rows where that suffices."""
    outputs, inputs = shape
    width = min(inputs, elements)
    return min(outputs, elements // width), width


def _sweep_seconds(matrices: Sequence[Tensor], rows: int) -> float:
    inputs = {matrix.shape[1]: torch.ones(rows, matrix.shape[1], dtype=matrix.dtype) for matrix in matrices}
    start = perf_counter()
    for matrix in matrices:
        linear(inputs[matrix.shape[1]], matrix, None)
    return perf_counter() - start
