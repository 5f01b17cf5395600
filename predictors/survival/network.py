"""A small network with two answers about a drafted token, and the same over arrays; `predictors.survival.host` serves it.

    now     P(this token is accepted | all before it were),     next    P(the one after it is accepted | so was this one)
    logits = W2 relu(W1 (x - μ) / σ + b1) + b2

Shape suffixes: ... any drafts, F features, H hidden units.
"""

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

from predictors.network import Standardised, loaded
from predictors.survival.features import SCALARS, TOKEN

ANSWERS = NOW, NEXT = (0, 1)


class SurvivalNetwork(Standardised):
    """Logits [B, 2] of raw features [B, F]."""

    def __init__(self, hidden: int) -> None:
        super().__init__(len(SCALARS))
        self.head = nn.Sequential(nn.Linear(len(SCALARS), hidden), nn.ReLU(), nn.Linear(hidden, len(ANSWERS)))

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.head(self.standard(features))
        return logits


class SurvivalArrays:
    """The network over arrays of drafts, in double precision."""

    def __init__(self, network: SurvivalNetwork) -> None:
        values = {name: tensor.detach().double().numpy() for name, tensor in network.state_dict().items()}
        self._mean_F, self._inverse_F = values["mean"], 1 / values["scale"]
        self._first_FH, self._bias_H = values["head.0.weight"].T, values["head.0.bias"]
        self._last_H2, self._bias_2 = values["head.2.weight"].T, values["head.2.bias"]

    def __call__(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logits [..., 2] of raw features [..., F], and the token's squared distances [...]: the mean of its squared standardised
        coordinates, 1 on average over the training rows."""
        standard = (features - self._mean_F) * self._inverse_F
        hidden = np.maximum(standard.dot(self._first_FH) + self._bias_H, 0.0)
        of_token = standard[..., : len(TOKEN)]
        return hidden.dot(self._last_H2) + self._bias_2, np.einsum("...f,...f->...", of_token, of_token) / len(TOKEN)


def build_survival_network(tensors: Mapping[str, Tensor], source: str) -> SurvivalNetwork:
    """The network with ``tensors`` as weights, in evaluation mode."""
    return loaded(
        lambda: SurvivalNetwork(len(tensors["head.0.bias"])), tensors, f"{source}: the tensors are no survival network"
    )
