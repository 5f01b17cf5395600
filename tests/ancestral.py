"""The law of a model's own text: what every lossless decoder must emit."""

import torch

from runtime.laws import processed_law
from tests.toys import summed


def target_law(model, prompt, length, settings):
    """Law of the next ``length`` tokens by plain ancestral sampling."""
    law = {(): 1.0}
    for _ in range(length):
        longer = {}
        for tokens, probability in law.items():
            probs = processed_law(model.logits([*prompt, *tokens]), settings)
            for token, share in enumerate(probs.tolist()):
                if share:
                    longer[(*tokens, token)] = probability * share
        law = longer
    return law


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
