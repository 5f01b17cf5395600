"""CUDA kernels (Triton) for what stands between a block's matrix products, one each, and for its product with a single row.

    added_norm   x + y, and its norm
    turned       queries, turned; keys, turned, and values into the cache
    gated        silu(gate) · up
    product      W x of one row: bytes of W pass once, without a tensor core's padding to eight rows

Each computes what `runtime.compact.forward` does in torch's operations, in float32. A block is 17 of those and 9 of these, and
a small kernel takes some 3 to 6 microseconds on an H200, whatever it does. Shape suffixes: N
nodes, H query heads, K key heads, D head dimension, C hidden size, F feed-forward size, I inputs and O outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

GATE_BLOCK = 1024
PRODUCT_ROWS, PRODUCT_BLOCK = 4, 1024


def added_norm(x_NC: Tensor, y_NC: Tensor | None, weight_C: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the sum (``x_NC`` itself without ``y_NC``) and its root mean square norm."""
    x_NC = x_NC.contiguous()
    count, width = x_NC.shape
    sum_NC = x_NC if y_NC is None else torch.empty_like(x_NC)
    normed_NC = torch.empty_like(x_NC)
    block = triton.next_power_of_2(width)
    warps = min(16, max(1, block // 512))
    with torch.cuda.device_of(x_NC):
        _added_norm[(count,)](
            x_NC, x_NC if y_NC is None else y_NC.contiguous(), weight_C, sum_NC, normed_NC, epsilon, width,
            ADDS=y_NC is not None, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return sum_NC, normed_NC


@triton.jit
def _added_norm(x, y, weight, total, normed, epsilon, width, ADDS: tl.constexpr, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
    place = tl.arange(0, BLOCK)
    inside = place < width
    at = tl.program_id(0) * width + place
    values = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        values = (values.to(tl.float32) + tl.load(y + at, mask=inside, other=0.0).to(tl.float32)).to(values.dtype)
        tl.store(total + at, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / width + epsilon)
    by = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * scale * by).to(values.dtype), mask=inside)


def turned(
    joint_NO: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    angles: tuple[Tensor, Tensor],
    rows_N: Tensor,
    cache: tuple[Tensor, Tensor],
    heads: int,
    epsilon: float,
    farthest: float,
) -> tuple[Tensor, Tensor]:
    """Turn the queries of ``joint_NO`` (queries, keys and values of all heads, joined) by the cosines and signed sines
    ``angles`` [N, D]: [1, H, N, D]. Keys and values go to ``rows_N`` of the ``cache`` [1, K, rows, D]. ``norms``: of a query's
    and of a key's head, before they are turned. With them [N, H + 2 K]: infinity for heads with coordinates beyond ``farthest``
    (a value's: not finite), which are zeros in the cache, else 0."""
    keys, values = cache
    cos_ND, sin_ND = angles
    key_heads, room, size = keys.shape[1:]
    queries = joint_NO.new_empty(1, heads, len(joint_NO), size)
    query_norm, key_norm = norms or (cos_ND, cos_ND)  # read where there are norms
    reach_NH = queries.new_empty(len(joint_NO), heads + 2 * key_heads, dtype=torch.float32)
    with torch.cuda.device_of(joint_NO):
        _turned[(len(joint_NO), heads + 2 * key_heads)](
            joint_NO.contiguous(), query_norm, key_norm, cos_ND, sin_ND, rows_N, queries, keys, values, reach_NH,
            len(joint_NO), room, epsilon, FARTHEST=farthest,
            HEADS=heads, KEY_HEADS=key_heads, SIZE=size, HALF=triton.next_power_of_2(size // 2), NORMS=norms is not None,
            num_warps=1,
        )  # fmt: skip
    return queries, reach_NH


@triton.jit
def _turned(  # type: ignore[no-untyped-def]
    joint, query_norm, key_norm, cos, sin, rows, queries, keys, values, reach, count, room, epsilon, FARTHEST: tl.constexpr,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr,
) -> None:  # fmt: skip
    node, head = tl.program_id(0), tl.program_id(1)
    place = tl.arange(0, HALF)
    inside = place < SIZE // 2
    source = joint + (node * (HEADS + 2 * KEY_HEADS) + head) * SIZE + place
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + SIZE // 2, mask=inside, other=0.0)
    row = tl.load(rows + node)
    if head >= HEADS + KEY_HEADS:
        out = values + ((head - HEADS - KEY_HEADS) * room + row) * SIZE + place
        fine, right_fine = tl.abs(first.to(tl.float32)) < float("inf"), tl.abs(second.to(tl.float32)) < float("inf")
        tl.store(out, tl.where(fine, first, 0.0).to(first.dtype), mask=inside)
        tl.store(out + SIZE // 2, tl.where(right_fine, second, 0.0).to(first.dtype), mask=inside)
    else:
        left, right = first.to(tl.float32), second.to(tl.float32)
        if NORMS:
            by = query_norm + place
            if head >= HEADS:
                by = key_norm + place
            scale = tl.rsqrt((tl.sum(left * left) + tl.sum(right * right)) / SIZE + epsilon)
            left = (left * scale * tl.load(by, mask=inside, other=0.0).to(tl.float32)).to(first.dtype).to(tl.float32)
            by += SIZE // 2
            right = (right * scale * tl.load(by, mask=inside, other=0.0).to(tl.float32)).to(first.dtype).to(tl.float32)
        angle = node * SIZE + place
        cos_left = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        cos_right = tl.load(cos + angle + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
        sin_left = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        sin_right = tl.load(sin + angle + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
        out = queries + (head * count + node) * SIZE + place
        if head >= HEADS:
            out = keys + ((head - HEADS) * room + row) * SIZE + place
        one, other = (
            (left * cos_left + right * sin_left).to(first.dtype),
            (right * cos_right + left * sin_right).to(first.dtype),
        )
        fine, right_fine = tl.abs(one.to(tl.float32)) < FARTHEST, tl.abs(other.to(tl.float32)) < FARTHEST
        if head >= HEADS:
            one, other = tl.where(fine, one, 0.0).to(first.dtype), tl.where(right_fine, other, 0.0).to(first.dtype)
        tl.store(out, one, mask=inside)
        tl.store(out + SIZE // 2, other, mask=inside)
    lost = tl.sum((inside & ~(fine & right_fine)).to(tl.int32))
    tl.store(reach + node * (HEADS + 2 * KEY_HEADS) + head, tl.where(lost > 0, float("inf"), 0.0))


def gated(joint_NF: Tensor) -> Tensor:
    """Compute silu(gate) · up [N, F] of ``joint_NF``, gate and up next to each other."""
    count, width = len(joint_NF), joint_NF.shape[1] // 2
    out_NF = joint_NF.new_empty(count, width)
    with torch.cuda.device_of(joint_NF):
        grid = (count, triton.cdiv(width, GATE_BLOCK))
        _gated[grid](joint_NF.contiguous(), out_NF, width, BLOCK=GATE_BLOCK, num_warps=4)
    return out_NF


@triton.jit
def _gated(joint, out, width, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
    node, place = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    gate = tl.load(joint + node * 2 * width + place, mask=inside, other=0.0)
    up = tl.load(joint + node * 2 * width + width + place, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    turned_on = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(out + node * width + place, (turned_on * up).to(gate.dtype), mask=inside)


def product(x_1I: Tensor, weight_OI: Tensor) -> Tensor:
    """Compute W x [1, O] of a single row."""
    outputs, inputs = weight_OI.shape
    out_1O = x_1I.new_empty(1, outputs)
    with torch.cuda.device_of(x_1I):
        grid = (triton.cdiv(outputs, PRODUCT_ROWS),)
        _product[grid](
            x_1I.contiguous(),
            weight_OI,
            out_1O,
            outputs,
            INPUTS=inputs,
            ROWS=PRODUCT_ROWS,
            BLOCK=PRODUCT_BLOCK,
            num_warps=4,
        )
    return out_1O


@triton.jit
def _product(x, weight, out, outputs, INPUTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr) -> None:  # type: ignore[no-untyped-def]
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, INPUTS, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < INPUTS
        own = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        both = (row < outputs)[:, None] & inside[None, :]
        total += (
            tl.load(weight + row[:, None] * INPUTS + place[None, :], mask=both, other=0.0).to(tl.float32) * own[None, :]
        )
    tl.store(out + row, tl.sum(total, axis=1).to(out.dtype.element_ty), mask=row < outputs)
