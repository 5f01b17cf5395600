"""The selector's network: how many tokens each action is worth here.

    r_i = W_i z_i,  i = 1, 2, 3                                         hidden states in front of and behind the newest token
    g   = MLP [LN(r_1), LN(r_2), LN(r_3), scalars]                      two hidden layers (512, 32), GELU, dropout
    E_a = exp g_a                                                       expected tokens of a step that drafts action a

z and the scalars are standardised; without tapped states there is no r. The network starts at the training rows' mean E, with
which `predictors.selection.rule` chooses statically. What a step costs is neither learned nor read: with another machine's prices
the same network decides anew. Trained for throughput, it knows E only up to a factor of each root's. Source: paper 004, Eq. 10;
specification of drafting, section 8, where the outputs are logits of a policy.

Shape suffixes: B rows, S state size, W width, A actions.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from predictors.network import squared_distance
from predictors.selection.features import SelectionSpec


class SelectorNetwork(nn.Module):
    """Log expected tokens [B, A] of raw rows. Standardisation and the space that distances are measured in are buffers."""

    mean: Tensor
    scale: Tensor
    centre: Tensor
    spread: Tensor

    def __init__(
        self, spec: SelectionSpec, width: int = 64, hidden_sizes: tuple[int, int] = (512, 32), dropout: float = 0.1
    ) -> None:
        super().__init__()
        size = spec.state_size + spec.num_scalars
        self.blocks, self.num_scalars = spec.blocks, spec.num_scalars
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.projections = nn.ModuleList(nn.Linear(block, width) for block in spec.blocks)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in spec.blocks)
        reduced = width * len(spec.blocks) + spec.num_scalars
        self.register_buffer("centre", torch.zeros(reduced))
        self.register_buffer("spread", torch.ones(reduced))
        sizes = (reduced, *hidden_sizes)
        layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.GELU(), nn.Dropout(dropout))]
        self.head = nn.Sequential(*layers, nn.Linear(sizes[-1], len(spec.actions)))

    def forward(self, features: Tensor) -> Tensor:
        """g [B, A] of raw features [B, S + scalars]."""
        *blocks, scalars = self._parts(features)
        normed = [norm(block) for norm, block in zip(self.norms, blocks, strict=True)]
        logs: Tensor = self.head(torch.cat([*normed, scalars], dim=1))
        return logs

    def reduced(self, features: Tensor) -> Tensor:
        """The space [B, 3 W + scalars] in front of the norms, standardised by the training rows."""
        return (torch.cat(self._parts(features), dim=1) - self.centre) / self.spread

    def _parts(self, features: Tensor) -> list[Tensor]:
        *blocks, scalars = ((features - self.mean) / self.scale).split([*self.blocks, self.num_scalars], dim=1)
        return [*(projection(block) for projection, block in zip(self.projections, blocks, strict=True)), scalars]


class ServedSelector:
    """A network for one row at a time: few operations, as each costs more than its arithmetic.

    One product makes r and the scalars of the raw features, one normalisation does for the three blocks, and what the norms scale
    and shift is folded into the layer behind them.
    """

    def __init__(self, network: SelectorNetwork, device: torch.device) -> None:
        self._centre, self._spread = network.centre.to(device), network.spread.to(device)
        self._num_blocks = len(network.blocks)
        if not network.blocks:
            self._mean, self._scale = network.mean.to(device), network.scale.to(device)
            self._layers = _on([layer for layer in network.head if isinstance(layer, nn.Linear)], device)
            return
        with torch.no_grad():
            blocks, bias = _stacked(network.projections)
            joint = torch.block_diag(*blocks, torch.eye(network.num_scalars)) / network.scale
            shift = torch.cat([bias, bias.new_zeros(network.num_scalars)]) - joint @ network.mean
            first, *rest = [layer for layer in network.head if isinstance(layer, nn.Linear)]
            weights, offset = _stacked(network.norms)
            gains = torch.cat([*weights, bias.new_ones(network.num_scalars)])
            offsets = torch.cat([offset, bias.new_zeros(network.num_scalars)])
            folded = (first.weight * gains, first.bias + first.weight @ offsets)
        self._joint, self._shift = joint.to(device), shift.to(device)
        self._layers = [(folded[0].to(device), folded[1].to(device)), *_on(rest, device)]
        self._normed = len(bias)

    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """g [A] and the squared distance [] of raw features [S + scalars]."""
        values = reduced = self._reduced(features)
        if self._num_blocks:
            values = self._normalised(reduced)
        for weight, bias in self._layers[:-1]:
            values = nn.functional.gelu(torch.addmv(bias, weight, values))
        weight, bias = self._layers[-1]
        distance = squared_distance(((reduced - self._centre) / self._spread).unsqueeze(0))[0]
        return torch.addmv(bias, weight, values), distance

    def row(self, features: Tensor) -> Tensor:
        """g [A], then the squared distance, of raw features: one read by the host."""
        logs_A, distance = self(features)
        return torch.cat([logs_A, distance.reshape(1)])

    def _reduced(self, features: Tensor) -> Tensor:
        if self._num_blocks:
            return torch.addmv(self._shift, self._joint, features)
        return (features - self._mean) / self._scale

    def _normalised(self, reduced: Tensor) -> Tensor:
        blocks = reduced[: self._normed].view(self._num_blocks, -1)
        normed = nn.functional.layer_norm(blocks, blocks.shape[1:])
        return torch.cat([normed.reshape(-1), reduced[self._normed :]])


def _stacked(layers: nn.ModuleList) -> tuple[list[Tensor], Tensor]:
    """Weights of the three blocks' layers, and their biases one behind the other."""
    parts = [(layer.get_parameter("weight"), layer.get_parameter("bias")) for layer in layers]
    return [weight for weight, _ in parts], torch.cat([bias for _, bias in parts])


def _on(layers: Sequence[nn.Linear], device: torch.device) -> list[tuple[Tensor, Tensor]]:
    return [(layer.weight.detach().to(device), layer.bias.detach().to(device)) for layer in layers]


def build_selector(spec: SelectionSpec, tensors: Mapping[str, Tensor], source: str) -> SelectorNetwork:
    """The network with ``tensors`` as weights, in evaluation mode; sizes are read from the tensors, checked against ``spec``."""
    try:
        width = tensors["norms.0.weight"].shape[0] if spec.blocks else 0
        hidden_sizes = (tensors["head.0.weight"].shape[0], tensors["head.3.weight"].shape[0])
        network = SelectorNetwork(spec, width, hidden_sizes)
        network.load_state_dict(dict(tensors))
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"{source}: the tensors do not fit the card's selection spec ({error}). Export it again."
        ) from error
    return network.eval()
