"""Networks that predict whether a drafted token will be accepted.

    r = (x - μ) / σ
    mlp        logit = W_n act( … act(W_1 r + b_1) …) + b_n             (MCSD: 512 and 128 units on a state, 64 on a law)
    residual   h ← h + silu(W_i h + b_i), i = 1..depth;  logit = w h + b  (SpecDec++'s head, from h = r)

Without hidden layers the MLP is a logistic regression. Standardisation is fitted on training rows and stored with the network.
Source: specification of drafting, sections 5.5 and 7.5. Shape suffixes: B rows, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from predictors.config import Checked, Count, Share, one_of
from predictors.network import SKETCH, Standardised, loaded, mlp, squared_distance

MLP, RESIDUAL = SHAPES = ("mlp", "residual")


@dataclass(frozen=True)
class NetworkShape(Checked):
    """``hidden_sizes`` of an MLP, or the ``depth`` of a residual network."""

    shape: Annotated[str, one_of(*SHAPES)] = MLP
    hidden_sizes: tuple[Count, ...] = ()
    depth: Count = 3
    dropout: Share = 0.0


class StopNetwork(Standardised):
    """Logits [B] of raw rows [B, F]."""

    def __init__(self, num_features: int, shape: NetworkShape) -> None:
        super().__init__(num_features)
        residual = shape.shape == RESIDUAL
        self.blocks = nn.ModuleList(
            nn.Linear(num_features, num_features) for _ in range(shape.depth if residual else 0)
        )
        hidden_sizes = () if residual else shape.hidden_sizes
        self.head = mlp((num_features, *hidden_sizes), 1, nn.ReLU, shape.dropout)

    def forward(self, features: Tensor) -> Tensor:
        return self.logits(self.standard(features))

    def logits(self, standard: Tensor) -> Tensor:
        """Logits [B] of standardised rows."""
        for block in self.blocks:
            standard = standard + nn.functional.silu(block(standard))
        return self.head(standard).squeeze(-1)


def served_logits(network: StopNetwork, features_EF: Tensor) -> Tensor:
    """Logits [E] of raw rows, the largest squared distance of them from the training rows, and the first row's sketch
    (`predictors.network.SKETCH`), one behind the other: one read by the host."""
    standard_EF = network.standard(features_EF)
    distance = squared_distance(standard_EF).max().reshape(1)
    return torch.cat([network.logits(standard_EF), distance, standard_EF[0, :SKETCH]])


def build_stop_network(
    num_features: int, shape: NetworkShape, tensors: Mapping[str, Tensor], source: str
) -> StopNetwork:
    """The network with ``tensors`` as weights, in evaluation mode."""
    sized = partial(StopNetwork, num_features, shape)
    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's network")
