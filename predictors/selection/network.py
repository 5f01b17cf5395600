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

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from predictors.network import Standardised, linears, loaded, mlp, squared_distance
from predictors.selection.features import SelectionSpec


class SelectorNetwork(Standardised):
    """Log expected tokens [B, A] of raw rows. The space that distances are measured in is standardised by buffers, too."""

    centre: Tensor
    spread: Tensor

    def __init__(
        self, spec: SelectionSpec, width: int = 64, hidden_sizes: tuple[int, int] = (512, 32), dropout: float = 0.1
    ) -> None:
        super().__init__(spec.state_size + spec.num_scalars)
        self.blocks, self.num_scalars = spec.blocks, spec.num_scalars
        self.projections = nn.ModuleList(nn.Linear(block, width) for block in spec.blocks)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in spec.blocks)
        reduced = width * len(spec.blocks) + spec.num_scalars
        self.register_buffer("centre", torch.zeros(reduced))
        self.register_buffer("spread", torch.ones(reduced))
        self.head = mlp((reduced, *hidden_sizes), len(spec.actions), nn.GELU, dropout)

    def forward(self, features: Tensor) -> Tensor:
        """g [B, A] of raw features [B, S + scalars]."""
        *blocks, scalars = self._parts(features)
        normed = [norm(block) for norm, block in zip(self.norms, blocks, strict=True)]
        return self.head(torch.cat([*normed, scalars], dim=1))

    def reduced(self, features: Tensor) -> Tensor:
        """The space [B, 3 W + scalars] in front of the norms, standardised by the training rows."""
        return (torch.cat(self._parts(features), dim=1) - self.centre) / self.spread

    def _parts(self, features: Tensor) -> list[Tensor]:
        *blocks, scalars = self.standard(features).split([*self.blocks, self.num_scalars], dim=1)
        return [*(projection(block) for projection, block in zip(self.projections, blocks, strict=True)), scalars]


class ServedSelector:
    """A network for one row at a time: few operations, as each costs more than its arithmetic.

    One product makes r and the scalars of the raw features, one normalisation does for the three blocks, and what the norms scale
    and shift is folded into the layer behind them.
    """

    def __init__(self, network: SelectorNetwork, device: torch.device) -> None:
        self._centre, self._spread = network.centre.to(device), network.spread.to(device)
        self._mean, self._scale = network.mean.to(device), network.scale.to(device)
        self._layers, self._num_blocks = linears(network.head, device), len(network.blocks)
        if not network.blocks:
            return
        with torch.no_grad():
            blocks, bias = _stacked(network.projections)
            ones, zeros = bias.new_ones(network.num_scalars), bias.new_zeros(network.num_scalars)
            joint = torch.block_diag(*blocks, torch.eye(network.num_scalars)) / network.scale
            shift = torch.cat([bias, zeros]) - joint @ network.mean
            gains, offset = _stacked(network.norms)
            first = next(layer for layer in network.head if isinstance(layer, nn.Linear))
            weight = first.weight * torch.cat([*gains, ones])
            self._layers[0] = weight.to(device), (first.bias + first.weight @ torch.cat([offset, zeros])).to(device)
        self._joint, self._shift = joint.to(device), shift.to(device)
        self._normed = len(bias)

    def __call__(self, features: Tensor) -> Tensor:
        """g [A], then the squared distance, of raw features [S + scalars]: one read by the host."""
        if self._num_blocks:
            reduced = torch.addmv(self._shift, self._joint, features)
            blocks = reduced[: self._normed].view(self._num_blocks, -1)
            normed = nn.functional.layer_norm(blocks, blocks.shape[1:])
            values = torch.cat([normed.reshape(-1), reduced[self._normed :]])
        else:
            values = reduced = (features - self._mean) / self._scale
        for weight, bias in self._layers[:-1]:
            values = nn.functional.gelu(torch.addmv(bias, weight, values))
        weight, bias = self._layers[-1]
        distance = squared_distance(((reduced - self._centre) / self._spread).unsqueeze(0))
        return torch.cat([torch.addmv(bias, weight, values), distance])


def _stacked(layers: nn.ModuleList) -> tuple[list[Tensor], Tensor]:
    """Weights of the three blocks' layers, and their biases one behind the other."""
    parts = [(layer.get_parameter("weight"), layer.get_parameter("bias")) for layer in layers]
    return [weight for weight, _ in parts], torch.cat([bias for _, bias in parts])


def build_selector(spec: SelectionSpec, tensors: Mapping[str, Tensor], source: str) -> SelectorNetwork:
    """The network with ``tensors`` as weights, in evaluation mode; sizes are read from the tensors, checked against ``spec``."""

    def sized() -> SelectorNetwork:
        width = len(tensors["norms.0.weight"]) if spec.blocks else 0
        return SelectorNetwork(spec, width, (len(tensors["head.0.weight"]), len(tensors["head.3.weight"])))

    return loaded(sized, tensors, f"{source}: the tensors do not fit the card's selection spec")
