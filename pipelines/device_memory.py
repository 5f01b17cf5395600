"""Memory that a device has free now."""

import torch


def available_memory(device: torch.device) -> int:
    """Bytes that may still be taken on a CUDA device; on any other the machine's own that are available."""
    if device.type != "cuda":
        import psutil  # the benchmark of a GPU goes without

        return int(psutil.virtual_memory().available)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by torch, for what comes
    return int(torch.cuda.mem_get_info(device)[0]) + kept
