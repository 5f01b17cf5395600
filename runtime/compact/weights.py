"""The weights of a Llama-shaped Hugging Face model in few matrices: query, key and value are one, gate and up are one.

The model's own parameters become views of the joint matrices: no memory is spent twice, Hugging Face's forward works as before,
and what changes a parameter in place changes both. What was replaced since (``model.to(…)``, an adapter's layers) is noticed by
`runtime.compact.applicable.signature`.

Their matrix products, W x + b for every row of x:

    plain     `F.linear`
    packed    a copy of W in oneDNN's own layout, made once: no call copies anything

On CPUs a verification pass costs what its product does with few rows. Seconds of all products of the built-in target's shape in
float32, two cores of an AMD Zen 3, in milliseconds (commit 30262a2):

    rows        1      2      5      9      33
    plain     12.1   26.4   24.5   29.5   43.4
    packed     9.0    9.9   11.6   13.0   23.5

A model that is nobody else's need not keep what was packed: its parameters then lie on torch's meta device (`let_go`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.compact.applicable import NotCompactError, require_compact

if TYPE_CHECKING:
    from transformers import PreTrainedModel


LAYOUT_ROWS = 8  # rows that oneDNN plans for; its layout for one row serves more rows badly
LET_GO = (
    "its matrices were let go once they were packed, and only the packed forward computes it. Load it with "
    "ModelPair.load(..., whole=True) to run it otherwise, or to change it."
)


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """Compute W x + b for every row of ``x_NI``; ``weight_OI`` as the model has it, or as `packed` made it."""
    if not weight_OI.is_mkldnn:
        return F.linear(x_NI, weight_OI, bias_O)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
    return product


def kernels_for(weight: Tensor) -> Any:
    """Import `runtime.compact.kernels`; `NotCompactError` where they cannot compute with ``weight``."""
    name = str(weight.dtype).removeprefix("torch.")
    if weight.device.type != "cuda" or weight.dtype.itemsize > 4:
        raise NotCompactError(
            f"its weights are {name} on {weight.device.type}, and fused kernels take 16 or 32 bits on CUDA devices. Use "
            "forward='auto'."
        )
    try:
        from runtime.compact import kernels
    except ImportError:
        raise NotCompactError("fused kernels need Triton, which torch's builds for Linux bring along.") from None
    return kernels


def packed(weight_OI: Tensor) -> Tensor:
    """Copy a matrix that is not `unpackable` into oneDNN's layout, for `linear` alone."""
    layout: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous(), LAYOUT_ROWS)
    return layout


def unpackable(weight: Tensor) -> str | None:
    """Return why ``weight`` cannot be packed in oneDNN's layout; ``None`` if it can."""
    if weight.device.type != "cpu":
        return f"they are on {weight.device.type}, and only a CPU's products know the layout"
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this processor does not multiply bfloat16"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"{str(weight.dtype).removeprefix('torch.')} has no packed product; float32 and bfloat16 do"
    return None


def let_go(projection: nn.Linear) -> None:
    """Free one matrix. torch computes on with one on the meta device, so the module's own forward is made to refuse."""
    projection.weight = nn.Parameter(torch.empty_like(projection.weight, device="meta"), requires_grad=False)
    projection.register_forward_pre_hook(_refuse)


def _refuse(module: nn.Module, inputs: Any) -> None:
    raise ValueError(f"this model cannot run by its own forward: {LET_GO}")


def is_whole(model: nn.Module) -> bool:
    """Tell whether ``model`` holds all its matrices: none was let go."""
    return all(_refuse not in module._forward_pre_hooks.values() for module in model.modules())


MATRICES = ("qkv", "output", "gate_up", "down")  # of a layer


@dataclass(frozen=True)
class Rotary:
    """Rotary angles of positions: ``frequencies`` [D / 2] in radians, ``scaling`` of their cosines and sines."""

    frequencies: Tensor
    scaling: float

    def table(self, positions_P: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Compute cosines and sines [P, D] of positions, in float32 as Hugging Face's."""
        angles = positions_P[:, None].float() * self.frequencies.float()
        angles_PD = torch.cat([angles, angles], dim=-1)
        return (angles_PD.cos() * self.scaling).to(dtype), (angles_PD.sin() * self.scaling).to(dtype)


@dataclass(frozen=True)
class LayerWeights:
    """One block's weights: ``qkv`` [(H + 2 K) D, C] of H query and K key heads, ``gate_up`` [2 F, C]; head norms [D] or none."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    feed_forward_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class CompactWeights:
    """Weights of a Llama-shaped model, with the sizes and functions that its configuration fixes."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    head_bias: Tensor | None
    heads: int
    key_heads: int
    head_dim: int
    epsilon: float
    scale: float
    activation: Callable[[Tensor], Tensor]
    rotary: Rotary
    kernels: Any = None  # `runtime.compact.kernels`, where passes are fused

    @classmethod
    def of(
        cls, model: "PreTrainedModel", pack: bool = False, whole: bool = True, fused: bool = False
    ) -> "CompactWeights":
        """Join the weights of ``model``, whose parameters become views of them. `NotCompactError` if this is no plain
        Llama-shaped model on one device: another family, other or hooked layers, changing angles.

        ``pack``: every matrix of blocks and head as `packed`; `NotCompactError` if they are `unpackable`. Without ``whole``
        the model then keeps its embedding and vectors alone; one block at a time is held twice meanwhile. With it, what changes
        a parameter in place, other than through ``.data``, makes packed ones out of date. ``fused``: passes use a CUDA
        device's own kernels.
        """
        require_compact(model)
        body, ends, attention = model.model, model.lm_head, model.model.layers[0].self_attn
        reason = unpackable(ends.weight) if pack else None
        if reason is not None:
            raise NotCompactError(f"weights cannot be packed: {reason}. Use forward='compact'.")
        activation = body.layers[0].mlp.act_fn
        with torch.inference_mode(False), torch.no_grad():  # the parameters stay ones that can be trained
            layers = tuple(_layer(block, pack, whole) for block in body.layers)
            head = packed(ends.weight) if pack else ends.weight
            if pack and not whole:
                if ends.weight is not body.embed_tokens.weight:
                    let_go(ends)
                for parameter in model.parameters():  # a copy of what is left lets the file go, too
                    parameter.data = parameter.data.clone()
        return cls(
            embedding=body.embed_tokens.weight,
            layers=layers,
            norm=body.norm.weight,
            head=head,
            head_bias=ends.bias,
            heads=model.config.num_attention_heads,
            key_heads=model.config.num_key_value_heads,
            head_dim=attention.head_dim,
            epsilon=model.config.rms_norm_eps,
            scale=attention.scaling,
            # torch's own where it is that: called without a module
            activation=F.silu if type(activation).__name__ in ("SiLUActivation", "SiLU") else activation,
            rotary=Rotary(body.rotary_emb.inv_freq, body.rotary_emb.attention_scaling),
            kernels=kernels_for(ends.weight) if fused else None,
        )

    @property
    def packed_bytes(self) -> int:
        """Bytes of all `packed` matrices, at the least: oneDNN may round their sizes up."""
        matrices = [getattr(layer, name) for layer in self.layers for name in MATRICES] + [self.head]
        return sum(matrix.numel() * matrix.element_size() for matrix in matrices if matrix.is_mkldnn)


def _layer(block: Any, pack: bool, whole: bool) -> LayerWeights:
    attention, feed_forward = block.self_attn, block.mlp
    qkv, qkv_bias = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
    gate_up, gate_up_bias = _joined([feed_forward.gate_proj, feed_forward.up_proj])
    layer = LayerWeights(
        attention_norm=block.input_layernorm.weight,
        qkv=qkv,
        qkv_bias=qkv_bias,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        output=attention.o_proj.weight,
        output_bias=attention.o_proj.bias,
        feed_forward_norm=block.post_attention_layernorm.weight,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=feed_forward.down_proj.weight,
        down_bias=feed_forward.down_proj.bias,
    )
    if pack:
        layer = replace(layer, **{name: packed(getattr(layer, name)) for name in MATRICES})
    if pack and not whole:
        for projection in (one for one in block.modules() if isinstance(one, nn.Linear)):
            let_go(projection)
    return layer


def _joined(projections: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Join weight and bias of several projections of one input; their parameters become views of the result."""
    weight = _join([projection.weight for projection in projections])
    biases: list[Tensor] = [projection.bias for projection in projections if projection.bias is not None]
    return weight, _join(biases) if biases else None


def _join(parameters: Sequence[Tensor]) -> Tensor:
    if _are_joined(parameters):
        rows = sum(map(len, parameters))
        return parameters[0].data.as_strided((rows, *parameters[0].shape[1:]), parameters[0].stride())
    joint = torch.cat([parameter.data for parameter in parameters])
    for parameter, view in zip(parameters, joint.split([len(parameter) for parameter in parameters]), strict=True):
        parameter.data = view
    return joint


def _are_joined(parameters: Sequence[Tensor]) -> bool:
    """Tell whether each parameter lies right after the one before it, as an earlier joining left them."""
    places = [(p.untyped_storage().data_ptr(), p.storage_offset(), p.storage_offset() + p.numel()) for p in parameters]
    follows = [before[0] == place[0] and before[2] == place[1] for before, place in pairwise(places)]
    return all(follows) and all(parameter.is_contiguous() for parameter in parameters)
