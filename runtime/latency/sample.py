"""One pass of a model, to learn what it works with: dtype, device and vocabulary."""

import torch
from torch import Tensor

from runtime.adapter import LanguageModel


def sample_logits(model: LanguageModel) -> Tensor:
    """Logits [1, V] of one pass, as the decoder gets them."""
    return model.open(1).forward([0]).logits


def device_of(model: LanguageModel) -> torch.device:
    """The model's ``device``, where it has none that of its logits."""
    device: torch.device | None = getattr(model, "device", None)
    return sample_logits(model).device if device is None else device
