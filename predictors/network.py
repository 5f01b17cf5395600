"""What networks of learned controllers share, and the head: an MLP that classifies, over a fixed reduction of the features.

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


class Standardised(nn.Module):
    """Standardises rows by the mean μ and scale σ of the training rows: buffers, never trained."""

    mean: Tensor
    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def standard(self, features: Tensor) -> Tensor:
        """(x - μ) / σ."""
        return (features - self.mean) / self.scale


def mlp(sizes: Sequence[int], outputs: int, activation: Callable[[], nn.Module], dropout: float) -> nn.Sequential:
    """From ``sizes[0]`` inputs through hidden layers of ``sizes[1:]`` units, with ``activation`` and dropout, to ``outputs``."""
    hidden = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), activation(), nn.Dropout(dropout))]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


def linears(layers: nn.Sequential, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of every linear layer on ``device``."""
    return [
        (layer.weight.detach().to(device), layer.bias.detach().to(device))
        for layer in layers
        if isinstance(layer, nn.Linear)
    ]


def squared_distance(reduced: Tensor) -> Tensor:
    """Mean squared standardised coordinate [B] of reduced features [B, R]: 1 on average over the training rows."""
    return reduced.square().mean(dim=1)


def loaded(make: Callable[[], Network], tensors: Mapping[str, Tensor], misfit: str) -> Network:
    """The network of ``make``, which may read sizes from ``tensors``, with these as weights, in evaluation mode.

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

    def forward(self, features: Tensor) -> Tensor:
        """Raw features [B, S + C] to reduced, unit-variance ones [B, R + C]."""
        standard = self.standard(features)
        if not len(self.components):
            return standard
        state, scalars = standard.split([self.state_size, standard.shape[1] - self.state_size], dim=1)
        return torch.cat([state @ self.components.T / self.component_scale, scalars], dim=1)


class HRADNetwork(nn.Module):
    """Reduction and MLP. ``reduced_size=None`` keeps all state columns (the paper's head); ``num_classes`` by default H-RAD's."""

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
        self.head = mlp((self.reduction.output_size, *hidden_sizes), num_classes, nn.ReLU, dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Class logits [B, L] of raw features [B, S + C]."""
        return self.head(self.reduction(features))


class ServedHead:
    """A network for one row at a time: few operations, as each costs more than its arithmetic.

    r = A x - A μ        A = C / σ / s on state columns, 1 / σ on scalars           (the reduction, folded where there is a PCA)
    """

    def __init__(self, network: HRADNetwork, device: torch.device) -> None:
        reduction = network.reduction
        self._mean, self._scale = reduction.mean.to(device), reduction.scale.to(device)
        self._folded: Tensor | None = None
        if len(reduction.components):
            size, num_scalars = reduction.state_size, len(reduction.mean) - reduction.state_size
            states = reduction.components / reduction.component_scale.unsqueeze(1)
            block = torch.block_diag(states, torch.eye(num_scalars)) if num_scalars else states
            assert block.shape == (reduction.output_size, size + num_scalars)
            self._folded = (block / reduction.scale).to(device)
        self._layers = linears(network.head, device)

    def __call__(self, features: Tensor) -> Tensor:
        """Class logits [L] of raw features [1, S + C], their squared distance, and `SKETCH` of them as reduced."""
        centred = features - self._mean
        reduced = centred / self._scale if self._folded is None else nn.functional.linear(centred, self._folded)
        values = reduced
        for weight, bias in self._layers[:-1]:
            values = nn.functional.linear(values, weight, bias).relu_()
        logits = nn.functional.linear(values, *self._layers[-1])
        return torch.cat([logits, squared_distance(reduced).unsqueeze(1), reduced[:, :SKETCH]], dim=1)[0]


def build_network(spec: FeatureSpec, tensors: Mapping[str, Tensor], source: str) -> HRADNetwork:
    """The head with ``tensors`` as weights, in evaluation mode; sizes are read from the tensors and checked against ``spec``."""

    def sized() -> HRADNetwork:
        reduced_size = tensors["reduction.components"].shape[0] or None
        first, second, classes = (len(tensors[f"head.{layer}.weight"]) for layer in (0, 3, 6))
        return HRADNetwork(spec.state_size, len(spec.scalars), reduced_size, (first, second), num_classes=classes)

    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's feature spec")
