"""The matrix products of the compact forward: W x + b for every row of x.

    plain       `F.linear`
    few rows    in bfloat16 on a CPU, rows move to the weights: Wᵀ would be copied into the library's layout at every call
    packed      a second copy of W in oneDNN's own layout, made once; no call copies anything

On CPUs a verification pass costs what its product does with few rows. Seconds of all products of the built-in target's shape in
float32, two cores of an AMD Zen 3, in milliseconds (commit 30262a2 and this file):

    rows        1      2      5      9      33
    plain     12.1   26.4   24.5   29.5   43.4
    few rows  12.1   12.5   16.1   20.7   36.5
    packed     9.0    9.9   11.6   13.0   23.5
"""

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 16
LAYOUT_ROWS = 8  # rows that oneDNN is told to expect; its layout for one row serves more rows badly


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """W x + b for every row of ``x_NI``; ``weight_OI`` as the model has it, or as `packed` made it."""
    if weight_OI.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_NI, weight_OI, bias_O, "none", [], "")
        return product
    few = len(x_NI) <= FEW_ROWS and x_NI.dtype is torch.bfloat16 and x_NI.device.type == "cpu" and bias_O is None
    if not few:
        return F.linear(x_NI, weight_OI, bias_O)
    if len(x_NI) == 1:
        return torch.mv(weight_OI, x_NI[0]).unsqueeze(0)
    return torch.mm(weight_OI, x_NI.t()).t().contiguous()


def packed(weight_OI: Tensor) -> Tensor:
    """A copy of a CPU's matrix in oneDNN's layout, for `linear` alone. `ValueError` if there is none: another device, another
    number format, no oneDNN, a processor without the instructions."""
    reason = _unpackable(weight_OI)
    if reason is not None:
        raise ValueError(f"weights cannot be packed: {reason}. Use forward='compact'.")
    layout: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach().contiguous(), LAYOUT_ROWS)
    return layout


def _unpackable(weight: Tensor) -> str | None:
    if weight.device.type != "cpu":
        return f"they are on {weight.device.type}, and only a CPU's products know the layout"
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    if weight.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this processor does not multiply bfloat16"
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return f"{str(weight.dtype).removeprefix('torch.')} has no packed product; float32 and bfloat16 do"
    return None
