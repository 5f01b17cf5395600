"""Base of learned controllers' networks, and the head: an MLP that classifies, over a fixed reduction of the features.

    r = (x - μ) / σ,  for states optionally  r = C (x - μ) / σ / s       (C: PCA components, s: their standard deviations)
    logits = W3 relu(W2 relu(W1 r + b1) + b2) + b3                        (256 and 64 hidden units; dropout in training)

H-RAD's classes: 0 all rejected, 1 some accepted, 2 all γ accepted; the explicit length predictor has one class per accepted
length 0..γ. The reduction is fitted on training rows and stored with the head, so a caller passes raw features. Shape suffixes:
B rows, S state size, C scalars, R reduced state size, L classes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from predictors.features import FeatureSpec

CLASSES = ("none", "some", "all")  # H-RAD's
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


class Reduction(Standardised):
    """Standardisation of all columns and, for the state columns, an optional PCA. Parameters are buffers: never trained."""

    components: Tensor
    component_scale: Tensor

    def __init__(self, state_size: int, num_scalars: int, reduced_size: int | None) -> None:
        super().__init__(state_size + num_scalars)
        self.state_size = state_size
        self.output_size = (reduced_size or state_size) + num_scalars
        self.register_buffer("components", torch.zeros(reduced_size or 0, state_size))
        self.register_buffer("component_scale", torch.ones(reduced_size or 0))

    def reduced(self, features: Tensor) -> Tensor:
        """Reduce raw features [B, S + C] to unit-variance ones [B, R + C]."""
        standard = super().reduced(features)
        if not len(self.components):
            return standard
        state, scalars = standard.split([self.state_size, standard.shape[1] - self.state_size], dim=1)
        return torch.cat([state @ self.components.T / self.component_scale, scalars], dim=1)


class HRADNetwork(Judging):
    """Network of a head: class logits [B, L] of raw features [B, S + C], by reduction and MLP. ``reduced_size=None`` keeps all
    state columns, as the paper's head does; ``num_classes`` by default H-RAD's."""

    def __init__(
        self,
        state_size: int,
        num_scalars: int,
        reduced_size: int | None,
        hidden_sizes: tuple[int, int] = (256, 64),
        dropout: float = 0.4,
        num_classes: int = len(CLASSES),
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.reduction = Reduction(state_size, num_scalars, reduced_size)
        self.head = Mlp((self.reduction.output_size, *hidden_sizes), num_classes, nn.ReLU, dropout)

    def reduced(self, features: Tensor) -> Tensor:
        return self.reduction.reduced(features)

    def outputs(self, reduced: Tensor) -> Tensor:
        return self.head(reduced)


def build_network(spec: FeatureSpec, tensors: Mapping[str, Tensor], source: str) -> HRADNetwork:
    """Build the head with ``tensors`` as weights, in evaluation mode; sizes are read from them and checked against ``spec``."""

    def sized() -> HRADNetwork:
        reduced_size = tensors["reduction.components"].shape[0] or None
        first, second, classes = (len(tensors[f"head.{layer}.weight"]) for layer in (0, 3, 6))
        return HRADNetwork(spec.state_size, len(spec.scalars), reduced_size, (first, second), num_classes=classes)

    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's feature spec")
