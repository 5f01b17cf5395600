"""References for a model's own text: logits without a cache, and distributions that end at a token (`runtime.audit`)."""

import torch

from runtime.audit.enumeration import summed


def cut_law(law, eos):
    """A law of texts of one length, cut behind the first ``eos``."""
    return summed(
        (tokens[: tokens.index(eos) + 1] if eos in tokens else tokens, share) for tokens, share in law.items()
    )


class LlamaLogits:
    """Cache-free logits of a Hugging Face model."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def logits(self, context):
        return self.model(torch.tensor([context])).logits[0, -1].double()
