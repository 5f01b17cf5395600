"""Which number format a device computes in natively."""

import torch


def native_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where ``device`` multiplies it natively, else float32."""
    native = torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else _cpu_has_bfloat16()
    return torch.bfloat16 if native else torch.float32


def _cpu_has_bfloat16() -> bool:
    # Not a public question in torch: without native units bfloat16 is emulated, correct and several times slower.
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
