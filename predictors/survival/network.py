"""A small network with two answers about a drafted token; the same over arrays, and on the host, a token after the other.

    now     P(this token is accepted | all before it were),     next    P(the one after it is accepted | so was this one)
    logits = W2 relu(W1 (x - μ) / σ + b1) + b2

Shape suffixes: ... any drafts, F features, H hidden units.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from predictors.network import SKETCH, Standardised, loaded
from predictors.survival.features import LOOKUP, ROOT, SCALARS, TOKEN

ANSWERS = NOW, NEXT = (0, 1)


class SurvivalNetwork(Standardised):
    """Logits [B, 2] of raw features [B, F]."""

    def __init__(self, hidden: int) -> None:
        super().__init__(len(SCALARS))
        self.head = nn.Sequential(nn.Linear(len(SCALARS), hidden), nn.ReLU(), nn.Linear(hidden, len(ANSWERS)))

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.standard(features))


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


class Said(NamedTuple):
    """Logits of `now` and `next`, the token's squared distance, and the first of its standardised coordinates."""

    now: float
    following: float
    distance: float
    sketch: tuple[float, ...]


class HostNetwork:
    """A trained network's numbers, in the order in which a `HostCourse` sums them up.

        h = relu(W_token z + root + position + lookup + b)          z: the token's standardised numbers

    After a pass of a model nothing is in the caches, and an array operation takes ten microseconds there whatever it computes; so
    these are plain numbers, and what does not change with the token is summed before: once, or once a round.
    """

    def __init__(self, network: SurvivalNetwork) -> None:
        values = {name: tensor.detach().double() for name, tensor in network.state_dict().items()}
        first_HF, tokens = values["head.0.weight"].clone(), len(TOKEN)
        first_HF[:, tokens:] /= values["scale"][tokens:]
        bias_H = values["head.0.bias"] - first_HF[:, tokens:] @ values["mean"][tokens:]
        columns = dict(zip(SCALARS, first_HF.T.tolist(), strict=True))
        self.scaling = list(zip(values["mean"][:tokens].tolist(), (1 / values["scale"][:tokens]).tolist(), strict=True))
        self.units = list(zip(*(columns[name] for name in TOKEN), *values["head.2.weight"].tolist(), strict=True))
        self.bias = tuple(values["head.2.bias"].tolist())
        self.root = list(zip(bias_H.tolist(), *(columns[name] for name in ROOT), strict=True))
        self.lookup = list(zip(*(columns[name] for name in LOOKUP), strict=True))
        self._position = list(zip(columns["position"], columns["log_position"], strict=True))
        self._positions_H: list[list[float]] = []

    def position_H(self, position: int) -> list[float]:
        """What a place in the draft adds to the hidden units."""
        while len(self._positions_H) <= position:
            place = len(self._positions_H)
            self._positions_H.append([linear * place + log * math.log1p(place) for linear, log in self._position])
        return self._positions_H[position]


class HostCourse:
    """One draft, as `predictors.survival.features.Course`."""

    def __init__(self, network: HostNetwork, match: int, rejected: float, luck: float, greedy: float) -> None:
        found, log_match = float(match > 0), math.log1p(match)
        self._network, self._match, self._log_match = network, match, log_match
        self._root_H = [
            bias + found * one + log_match * two + rejected * three + luck * four + greedy * five
            for bias, one, two, three, four, five in network.root
        ]
        self._agrees = match > 0
        self._drafted = 0
        self._sum_top = self._sum_own = self._previous = 0.0

    def add(self, log_top: float, log_own: float, proposed: bool) -> Said:
        """What is said of one more token; ``proposed``: whether it is the lookup's next one."""
        network, root_H = self._network, self._root_H
        (m0, s0), (m1, s1), (m2, s2), (m3, s3), (m4, s4) = network.scaling
        self._sum_top += log_top
        self._sum_own += log_own
        top, own = (log_top - m0) * s0, (log_own - m1) * s1
        sum_top, sum_own = (self._sum_top - m2) * s2, (self._sum_own - m3) * s3
        previous = (self._previous - m4) * s4
        if self._match:
            root_H = self._with_lookup(proposed)
        now, following = network.bias
        for (a, b, c, d, e, to_now, to_following), root, place in zip(
            network.units, root_H, network.position_H(self._drafted), strict=True
        ):
            hidden = root + place + a * top + b * own + c * sum_top + d * sum_own + e * previous
            if not hidden < 0.0:  # no number stays none
                now += to_now * hidden
                following += to_following * hidden
        self._drafted += 1
        self._previous = log_top
        distance = (top * top + own * own + sum_top * sum_top + sum_own * sum_own + previous * previous) / len(TOKEN)
        return Said(now, following, distance, (top, own, sum_top, sum_own, previous)[:SKETCH])

    def _with_lookup(self, proposed: bool) -> list[float]:
        self._agrees = self._agrees and proposed
        pairs = zip(self._root_H, self._network.lookup, strict=True)
        if self._agrees:
            log_length = math.log1p(self._match + self._drafted + 1)
            return [root + agrees + log_length * length for root, (agrees, length, _, _) in pairs]
        return [root + parted + self._log_match * length for root, (_, _, length, parted) in pairs]


def build_survival_network(tensors: Mapping[str, Tensor], source: str) -> SurvivalNetwork:
    """The network with ``tensors`` as weights, in evaluation mode."""
    return loaded(
        lambda: SurvivalNetwork(len(tensors["head.0.bias"])), tensors, f"{source}: the tensors are no survival network"
    )
