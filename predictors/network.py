"""Base of learned controllers' networks, over a fixed reduction of the features.

    r = (x - μ) / σ

μ and σ are of the training rows and stored with the network, so a caller passes raw features. Shape suffixes: B rows, F features,
R reduced ones.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import mul
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

SKETCH = 4  # coordinates of reduced features that a forecast carries
Network = TypeVar("Network", bound=nn.Module)


class Judging(nn.Module):
    """A network whose features are first reduced: outputs [B, …] of rows, and how far rows lie from the training rows."""

    def reduced(self, features: Tensor) -> Tensor:
        """Reduce raw features [B, F] to what the layers read [B, R]."""
        raise NotImplementedError

    def outputs(self, reduced: Tensor) -> Tensor:
        """Compute outputs [B, …] of reduced rows; by default these."""
        return reduced

    def measured(self, reduced: Tensor) -> Tensor:
        """Compute coordinates [B, R] of rows in the space that distances are measured in, standardised by the training rows."""
        return reduced

    def forward(self, features: Tensor) -> Tensor:
        return self.outputs(self.reduced(features))

    def judged(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Compute outputs of raw rows [B, F], and their squared distances [B] from the training rows."""
        reduced = self.reduced(features)
        return self.outputs(reduced), squared_distance(self.measured(reduced))

    def served(self, features: Tensor) -> Tensor:
        """Compute outputs of raw rows [B, F] one after the other, their largest squared distance, and `SKETCH` coordinates of the
        first, in one tensor that the host reads once."""
        reduced = self.reduced(features)
        space = self.measured(reduced)
        return torch.cat([self.outputs(reduced).flatten(), squared_distance(space).max().reshape(1), space[0, :SKETCH]])


class Standardised(Judging):
    """Standardises rows by the mean μ and scale σ of the training rows: buffers, never trained."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def reduced(self, features: Tensor) -> Tensor:
        """Standardise rows: (x - μ) / σ."""
        return (features - self.mean) / self.scale


class TwoLayers(Standardised):
    """Logits [B, O] of a small network, as `OnHost` runs it:  W2 relu(W1 r + b1) + b2."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__(features)
        self.head = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def outputs(self, reduced: Tensor) -> Tensor:
        return self.head(reduced)


class OnHost:
    """A trained network in double precision: over arrays of rows, or one row at a time in plain numbers.

    After a pass of a model nothing is in the caches, and an array operation takes ten microseconds there whatever it computes: a
    row's numbers by themselves take half the time of arrays.
    """

    def __init__(self, network: TwoLayers) -> None:
        values = {name: tensor.detach().double().numpy() for name, tensor in network.state_dict().items()}
        first, last = ((values[f"head.{layer}.weight"], values[f"head.{layer}.bias"]) for layer in (0, 2))
        self._mean_F, self._inverse_F, self._layers = values["mean"], 1 / values["scale"], (first, last)
        self._scaling = list(zip(self._mean_F.tolist(), self._inverse_F.tolist(), strict=True))
        self._units = [list(zip(weight.tolist(), bias.tolist(), strict=True)) for weight, bias in self._layers]

    def rows(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute logits [..., O] of raw features [..., F], and the standardised ones."""
        (first_HF, bias_H), (last_OH, bias_O) = self._layers
        standard = (features - self._mean_F) * self._inverse_F
        return np.maximum(standard.dot(first_HF.T) + bias_H, 0.0).dot(last_OH.T) + bias_O, standard

    def row(self, features: Sequence[float]) -> tuple[list[float], list[float]]:
        """Compute both of one row [F], in plain numbers."""
        first, last = self._units
        standard = [(value - mean) * inverse for value, (mean, inverse) in zip(features, self._scaling, strict=True)]
        sums = [sum(map(mul, weight_F, standard)) + bias for weight_F, bias in first]
        hidden = [0.0 if value < 0.0 else value for value in sums]  # no number stays none
        return [sum(map(mul, weight_H, hidden)) + bias for weight_H, bias in last], standard


class Mlp(nn.Sequential):
    """Linear layers, and between them ``activation`` and dropout. Without dropout a row takes few operations, as each costs more
    than its arithmetic."""

    def __init__(self, sizes: Sequence[int], outputs: int, activation: Callable[[], nn.Module], dropout: float) -> None:
        """Build layers from ``sizes[0]`` inputs through hidden layers of ``sizes[1:]`` units to ``outputs``."""
        hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), activation(), nn.Dropout(dropout))]
        super().__init__(*hidden, nn.Linear(sizes[-1], outputs))

    def forward(self, values: Tensor) -> Tensor:
        if self.training:
            return super().forward(values)
        for layer in self:
            if isinstance(layer, nn.Linear):
                values = nn.functional.linear(values, layer.weight, layer.bias)
            elif not isinstance(layer, nn.Dropout):
                values = layer.forward(values)
        return values


def squared_distance(reduced: Tensor) -> Tensor:
    """Compute the mean squared standardised coordinate [B] of reduced features [B, R]: 1 on average over the training rows."""
    return reduced.square().mean(dim=1)


def loaded(make: Callable[[], Network], tensors: Mapping[str, Tensor], misfit: str) -> Network:
    """Load the network of ``make``, which may read sizes from ``tensors``, with these as weights, in evaluation mode.

    `ValueError` that begins with ``misfit`` where they do not fit.
    """
    try:
        network = make()
        network.load_state_dict(dict(tensors))
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{misfit} ({error}). Export it again.") from error
    return network.eval()
