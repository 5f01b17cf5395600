"""What a stop model reads of a drafted token: written once, used by collection, training and decoding.

    law       concat(largest probabilities of the draft's temperature-1 law, descending; its entropy in nats)
    before    the draft's hidden state whose logits are the token's law
    behind    the draft's hidden state after the token was fed

``law`` and ``before`` are known before the token is drawn; ``behind`` sees the token, and is known with the next token's law.
States are cast to float16 wherever they are used, so that a served vector equals a stored one bit for bit. Source: specification
of drafting, sections 5.5 and 7.5. Shape suffixes: T most likely tokens, K tapped layers, D hidden size, S = K·D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from predictors.signals import NextLaw

LAW, BEFORE, BEHIND = INPUTS = ("law", "before", "behind")


@dataclass(frozen=True)
class StopSpec:
    """The tapped ``draft_layers`` (Hugging Face numbers), the draft's hidden size and the ``top`` most likely tokens."""

    draft_layers: tuple[int, ...]
    draft_hidden_size: int
    top: int

    @property
    def state_size(self) -> int:
        return len(self.draft_layers) * self.draft_hidden_size

    def size(self, inputs: str) -> int:
        """Numbers that a model of these ``inputs`` reads."""
        return self.top + 1 if inputs == LAW else self.state_size


def features_of(law: NextLaw, spec: StopSpec, inputs: str) -> Tensor:
    """Raw features [F] in float32 of a model of these ``inputs`` at a pass whose logits are ``law``."""
    if inputs == LAW:
        return torch.cat([law.likeliest(spec.top), law.entropy.float().reshape(1)])
    if law.hidden_KD is None:
        raise ValueError(
            "this controller reads the draft's hidden states, and the decoder taps none. Use build_decoder."
        )
    return law.hidden_KD.reshape(-1).to(torch.float16).float()
