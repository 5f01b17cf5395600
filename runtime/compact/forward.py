"""The forward of a Llama-shaped model over tensors of fixed shape, without a look at the host's state.

    x ← x + W_o attention(norm(x)),   x ← x + W_down (act(gate) · up) with gate, up = W_gu norm(x),   logits = W_head norm(x)

All that varies from pass to pass comes in tensors (tokens, cache rows, angles, mask); only the number N of nodes and the number
T of cache rows to read shape the work. Source: Hugging Face's Llama, Mistral, Qwen2 and Qwen3. Shape suffixes: N nodes, T cache
rows, H query heads, K key heads, D head dimension, C hidden size, I inputs and O outputs of a linear layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.compact.weights import CompactWeights, LayerWeights, linear

LayerCache = tuple[Tensor, Tensor]  # keys and values [1, K, rows, D]


@dataclass(frozen=True)
class Pass:
    """Arguments of one pass: ``rows_N`` of the cache to write, rotary ``cos_ND`` and signed ``sin_ND`` of the nodes' positions,
    and the first ``num_rows`` T of the cache to read, as ``mask_NT`` allows (0 or -inf; ``None``: causally). ``slots``: of
    several texts one after the other in the cache, each node reads the first rows of its own. ``lost``: the cache's rows
    without a state, if anybody has to know."""

    tokens_N: Tensor
    rows_N: Tensor
    cos_ND: Tensor
    sin_ND: Tensor
    num_rows: int
    mask_NT: Tensor | None
    slots: int = 1
    lost: "Lost | None" = None


FARTHEST = 1e17  # of a query's or a key's coordinates: their products are finite in float32
SCALE = 1e-22  # brings finite values below it


def farthest(dtype: torch.dtype) -> float:
    """Return the most that a coordinate of a query or a key may be in ``dtype``."""
    return min(FARTHEST, torch.finfo(dtype).max)


class Lost:
    """Cache rows ``rows_T`` [capacity] that have no state: a query, key or value there is not finite, or a product of two would
    not be. Keys and values are made finite, as 0 · NaN is no 0 and NaN would reach nodes that may not see it. Nodes that may
    see such a row get no logits (NaN).

    Where the host may look (not in a graphed pass), a pass only looks whether there is ``some`` such row, and is done again.
    """

    def __init__(self, rows: Tensor, some: bool) -> None:
        self.rows_T = torch.zeros_like(rows, dtype=torch.bool)
        self.some = some or rows.device.type != "cpu"
        self.reach: list[
            Tensor
        ] = []  # of a pass by layer: how far queries, keys and values [N] are from 0; one number to look at

    def watch(self, turned: Tensor, keys: Tensor, values: Tensor) -> None:
        """Check what a layer computes for the nodes: queries and keys, ``turned``, of which ``keys`` are a part, and values."""
        if not self.some:
            self.reach.append(torch.linalg.vector_norm(turned, torch.inf))
            return
        self.reach.append(torch.linalg.vector_norm(turned, torch.inf, dim=(0, 1, 3)))
        self.reach.append(SCALE * torch.linalg.vector_norm(values, torch.inf, dim=(0, 1, 3)))
        most = farthest(keys.dtype)
        keys.nan_to_num_(0.0, 0.0, 0.0).clamp_(-most, most)
        values.nan_to_num_(0.0, 0.0, 0.0)

    def found(self, x_NC: Tensor, call: Pass, caches: Sequence[LayerCache]) -> bool:
        """Tell whether a pass with last states ``x_NC`` must be done again: it found the first lost row, here or from before."""
        if self.some:
            return False
        most = farthest(x_NC.dtype)
        fine = (torch.stack(self.reach).amax() <= most) & x_NC.abs().amax().isfinite()
        self.some = not bool(fine)
        before = call.num_rows - len(x_NC)
        for place, held in enumerate(rows[:, :, :before] for cache in caches for rows in cache) if self.some else ():
            reach = torch.linalg.vector_norm(held, torch.inf, dim=(0, 1, 3)) * (SCALE if place % 2 else 1)
            self.rows_T[:before] |= ~(reach <= most)
            held.nan_to_num_(0.0, 0.0, 0.0)
            if place % 2 == 0:
                held.clamp_(-most, most)
        return self.some

    def seen_by(self, call: Pass) -> Tensor | None:
        """Tell which nodes [N] of a pass see a lost row, their own included; ``None``: none of them."""
        if not self.some:
            return None
        reach_N = torch.stack(self.reach).amax(dim=0)
        self.rows_T.index_copy_(0, call.rows_N, ~(reach_N <= farthest(reach_N.dtype)))
        lost_T = self.rows_T[: call.num_rows]
        if call.mask_NT is None:
            return lost_T.cumsum(0)[call.rows_N] > 0
        return ((call.mask_NT == 0) & lost_T).any(dim=1)


def forward(
    weights: CompactWeights, call: Pass, caches: Sequence[LayerCache], last: int, taps: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """Run the model: logits [last, V] of the last rows and hidden states [N, C] of layers ``taps``, numbered as Hugging Face's.

    ``caches`` are those of the layers; the nodes' rows are written. Ids that the vocabulary lacks read its last row.
    """
    own, call, lost = call, per_head(weights, call), call.lost
    if lost is not None:
        lost.reach.clear()
    x_NC, added_NC, states = embedded(weights, call.tokens_N), None, []
    for number, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
        x_NC, read_NC = added_norm(weights, x_NC, added_NC, layer.attention_norm)
        if number in taps:
            states.append(x_NC)
        x_NC, added_NC = block(weights, layer, cache, call, x_NC, read_NC)
    assert added_NC is not None
    first = 0 if len(weights.layers) in taps else len(x_NC) - last
    _, rows = added_norm(weights, x_NC[first:], added_NC[first:], weights.norm)
    if len(weights.layers) in taps:
        states.append(rows)
    logits = product(weights, rows[-last:], weights.head, weights.head_bias)
    if lost is None:
        return logits, states
    if lost.found(x_NC + added_NC, own, caches):
        return forward(weights, own, caches, last, taps)
    lost_N = lost.seen_by(own)
    return logits if lost_N is None else logits.masked_fill(lost_N[-last:].unsqueeze(1), torch.nan), states


def embedded(weights: CompactWeights, tokens_N: Tensor) -> Tensor:
    """Look up input embeddings [N, C]; ids that the vocabulary lacks read its last row."""
    return F.embedding(tokens_N.clamp(max=len(weights.embedding) - 1), weights.embedding)


def per_head(weights: CompactWeights, call: Pass) -> Pass:
    """Repeat ``call``'s mask for each query head of a key head, as `block` takes it."""
    groups = weights.heads // weights.key_heads
    if groups == 1 or call.mask_NT is None or call.slots > 1:
        return call
    return replace(call, mask_NT=call.mask_NT.repeat(groups, 1))


def block(
    weights: CompactWeights, layer: LayerWeights, cache: LayerCache, call: Pass, x_NC: Tensor, read_NI: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a block. The states [N, C] that leave it are the sum of both results: ``x_NC`` with what its attention over
    ``read_NI`` adds, and what its feed-forward adds."""
    mixed = _mixed(write_heads(weights, layer, cache, call, read_NI), cache, call, weights.scale)
    added = product(weights, mixed, layer.output, layer.output_bias)
    x_NC, read = added_norm(weights, x_NC, added, layer.feed_forward_norm)
    return x_NC, product(weights, _gated(weights, layer, read), layer.down, layer.down_bias)


def signed(sin: Tensor) -> Tensor:
    """Negate the first half of sines [..., D], which `_rotated` multiplies with the second half of a head."""
    half = sin.shape[-1] // 2
    return torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)


def write_heads(weights: CompactWeights, layer: LayerWeights, cache: LayerCache, call: Pass, read_NI: Tensor) -> Tensor:
    """Write the nodes' keys and values into the cache; return their queries [1, H, N, D]."""
    heads, key_heads = weights.heads, weights.key_heads
    joint = product(weights, read_NI, layer.qkv, layer.qkv_bias)
    if weights.kernels is not None:
        norms = None if layer.query_norm is None else (layer.query_norm, layer.key_norm)
        angles = call.cos_ND, call.sin_ND
        queries: Tensor
        queries, reach_NH = weights.kernels.turned(
            joint, norms, angles, call.rows_N, cache, heads, weights.epsilon, FARTHEST
        )
        if call.lost is not None:
            call.lost.reach.append(reach_NH.amax(dim=1))
        return queries
    joint = joint.view(len(read_NI), -1, weights.head_dim).transpose(0, 1).unsqueeze(0)
    turned, values = joint.split([heads + key_heads, key_heads], dim=1)
    if layer.query_norm is not None and layer.key_norm is not None:
        normed = norm(turned[:, :heads], layer.query_norm, weights.epsilon)
        turned = torch.cat([normed, norm(turned[:, heads:], layer.key_norm, weights.epsilon)], dim=1)
    turned = _rotated(turned, call)
    queries, keys = turned.split([heads, key_heads], dim=1)
    if call.lost is not None:
        call.lost.watch(turned, keys, values)
    all_keys, all_values = cache
    all_keys.index_copy_(2, call.rows_N, keys)
    all_values.index_copy_(2, call.rows_N, values)
    return queries


def _rotated(heads: Tensor, call: Pass) -> Tensor:
    """Turn heads [1, H, N, D] by the angles of the nodes' positions."""
    return torch.addcmul(heads * call.cos_ND, heads.roll(heads.shape[-1] // 2, -1), call.sin_ND)


def _mixed(queries: Tensor, cache: LayerCache, call: Pass, scale: float) -> Tensor:
    """Attention [N, H D] over the cache rows that ``call`` reads. The query heads of a key head become more rows of one
    product, so that keys are never repeated; the mask has a row for each of them.

    A CPU's product of one bfloat16 row is slower than that of two: a lone row goes twice. Passes over one token then take 0.98,
    0.96 and 0.9 of the time after 60, 120 and 300 others (AMD EPYC, two cores, 29976c7).
    """
    if call.slots > 1:
        return _mixed_slots(queries, cache, call, scale)
    keys, values = (rows.narrow(2, 0, call.num_rows) for rows in cache)
    heads, num_nodes = queries.shape[1:3]
    groups, mask = heads // keys.shape[1], call.mask_NT
    causal = mask is None and num_nodes > 1
    if groups > 1 and not causal:
        queries = queries.reshape(1, keys.shape[1], groups * num_nodes, -1)
    rows = queries.shape[2]
    if rows == 1 and queries.dtype == torch.bfloat16 and queries.device.type == "cpu":
        queries = queries.expand(-1, -1, 2, -1)
    mixed = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups > 1 and causal
    )
    return mixed[:, :, :rows].reshape(heads, num_nodes, -1).transpose(0, 1).reshape(num_nodes, -1)


def _mixed_slots(queries: Tensor, cache: LayerCache, call: Pass, scale: float) -> Tensor:
    """Attention as `_mixed`, of one node in each slot."""
    keys, values = (rows[0].unflatten(1, (call.slots, -1)).transpose(0, 1)[:, :, : call.num_rows] for rows in cache)
    assert call.mask_NT is not None
    grouped = queries[0].unflatten(0, (keys.shape[1], -1)).permute(2, 0, 1, 3)
    mixed = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=call.mask_NT[:, None, None], scale=scale)
    return mixed.flatten(1)


def _gated(weights: CompactWeights, layer: LayerWeights, normed_NC: Tensor) -> Tensor:
    joint = product(weights, normed_NC, layer.gate_up, layer.gate_up_bias)
    if weights.kernels is not None and weights.activation is F.silu:
        gated: Tensor = weights.kernels.gated(joint)
        return gated
    gate, up = joint.chunk(2, dim=-1)
    return weights.activation(gate) * up


def product(weights: CompactWeights, x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Compute W x + b as `linear`, by the fused kernel for a single row where there is one."""
    if weights.kernels is None or bias_O is not None or len(x_NI) > 1:
        return linear(x_NI, weight_OI, bias_O)
    one: Tensor = weights.kernels.product(x_NI, weight_OI)
    return one


def added_norm(
    weights: CompactWeights, x_NC: Tensor, added_NC: Tensor | None, weight_C: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sum ``x_NC + added_NC`` and its root mean square norm."""
    if weights.kernels is not None:
        both: tuple[Tensor, Tensor] = weights.kernels.added_norm(x_NC, added_NC, weight_C, weights.epsilon)
        return both
    if added_NC is not None:
        x_NC = x_NC + added_NC
    return x_NC, norm(x_NC, weight_C, weights.epsilon)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalise by the root mean square over the last dimension."""
    return F.rms_norm(x, weight.shape, weight, epsilon)
