"""Controller ``grow`` without its loop: what it reads of a level of a chain, its network and its rule.

    level d     logs of the largest probabilities of the draft's distribution there (of perturbed logits where sampling is
                invariant), their sum along the chain and the last one of it, and d
    P̂_r(d)      softmax of the network's logits without its last one, "none of them": candidate r is the text's token if all
                before it were; cut so as not to rise in r
    S_d         Π_{i<d} P̂_0(i), the chance that the chain gets there
    value       v_{d,r} = S_d P̂_r(d), what the candidate adds to a round's expected tokens
    go on       to level d + 1 if S_{d+1} η > ρ (level + row)
    lookup      its first m tokens as a path of their own, as far as s_i > ρ row: s_i is the chance that its first i are all right
    submit      beside them the n candidates of largest value, n = argmax Σ_{i<=n} v_i - ρ (N(m + n) - N(m))

Value falls along a chain and along ranks, so these n are a chain with leaves. Where a lookup has a path, S_0 = 1 - s_1 instead of
1, and a chain that is not worth a level then is not begun. N(n) is what a target pass over n nodes and its verdict take, `level`
what a further pass of the draft does, `row` the mean of one more node, all in rounds of plain decoding; ρ a rate, tokens per such
round, and η the tokens that a level is worth where it is reached. All of it holds for numbers and arrays.

Sources: the specification of one text per seed, section 2; EAGLE-2 (dynamic trees by cumulative probability). Shape suffixes: …
any rounds, L levels, K candidates, F features.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from predictors.config import Checked, NotNegative, Positive, Whole
from predictors.network import OnHost, TwoLayers, loaded
from predictors.sampling import SamplingSettings
from predictors.signals import LEAST_LOG

CANDIDATES = 4
GAMMA = 4  # levels of a chain whose choice is priced
TOKEN = (*(f"log_{rank}" for rank in range(CANDIDATES)), "sum_log", "previous_log")
SCALARS = (*TOKEN, "level", "invariant")  # the squared distance is of `TOKEN` alone, as the others are bounded


def logs_of(tops: np.ndarray) -> np.ndarray:
    """Turn the largest probabilities [..., ≥ K], descending, into the logs [..., K] that are read of them."""
    return np.log(np.maximum(tops[..., :CANDIDATES], np.exp(LEAST_LOG)))


def features_of(logs: np.ndarray, invariant: bool) -> np.ndarray:
    """Compute raw features [..., L, F] of the levels of chains from their ``logs`` [..., L, K]."""
    top = logs[..., 0]
    before = np.cumsum(top, axis=-1) - top
    previous = np.concatenate([np.zeros_like(top[..., :1]), top[..., :-1]], axis=-1)
    level, flag = (np.broadcast_to(one, top.shape) for one in (np.arange(top.shape[-1]), float(invariant)))
    return np.concatenate([logs, np.stack([before, previous, level, flag], axis=-1)], axis=-1)


def chances_of(logits: np.ndarray) -> np.ndarray:
    """Turn the network's logits [..., K + 1] into chances [..., K] of the candidates."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.minimum.accumulate(powers[..., :-1] / powers.sum(axis=-1, keepdims=True), axis=-1)


def values_of(chances: np.ndarray) -> np.ndarray:
    """Compute the values [..., L, K] of candidates from their ``chances`` along a chain."""
    reached = np.cumprod(chances[..., 0], axis=-1)
    return np.concatenate([np.ones_like(reached[..., :1]), reached[..., :-1]], axis=-1)[..., None] * chances


class GrowNetwork(TwoLayers):
    """Network of ``grow``: logits [B, K + 1] from raw features [B, F]."""

    def __init__(self, hidden: int) -> None:
        super().__init__(len(SCALARS), hidden, CANDIDATES + 1)


def build_grow_network(tensors: Mapping[str, Tensor], source: str) -> GrowNetwork:
    """Build the network with ``tensors`` as weights, in evaluation mode."""
    return loaded(
        lambda: GrowNetwork(len(tensors["head.0.bias"])), tensors, f"{source}: the tensors are no grow network"
    )


class Growing(OnHost):
    """A trained network, over arrays of rounds or about one level."""

    def __call__(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute chances [..., K] and squared distances [...] of raw features [..., F]."""
        logits, standard = self.rows(features)
        return chances_of(logits), np.square(standard[..., : len(TOKEN)]).mean(axis=-1)

    def of_one(self, features: list[float]) -> tuple[np.ndarray, float, list[float]]:
        """Compute the chances [K] of a level, its squared distance and the standardised features that this is of."""
        logits, standard = self.row(features)
        token = standard[: len(TOKEN)]
        return chances_of(np.array(logits)), sum(one * one for one in token) / len(token), token


@dataclass(frozen=True)
class GrowRule(Checked):
    """Rule of ``grow``: the module's ρ and η."""

    rate: NotNegative
    worth: NotNegative


@dataclass(frozen=True)
class GrowCosts(Checked):
    """Prices in rounds of plain decoding: of one more ``level``, and ``nodes`` N(0), N(1), …"""

    level: Positive = 1.0
    nodes: tuple[Positive, ...] = (1.0, 1.0)

    @cached_property
    def row(self) -> float:
        """Mean price of one more node."""
        return (self.nodes[-1] - self.nodes[0]) / max(len(self.nodes) - 1, 1)


@dataclass(frozen=True)
class GrowSetting(Checked):
    """Rule at captured sampling ``settings``: grow by ``rule`` where it ``pays``, else draft the static chain with its leaves.
    ``hazard``: weights of a lookup's tokens (`predictors.controllers.source`); none where no lookup was seen."""

    settings: SamplingSettings
    rule: GrowRule
    pays: bool
    static_length: Whole
    static_leaves: tuple[Whole, ...] = ()
    hazard: tuple[float, ...] = ()
    costs: GrowCosts = field(default_factory=GrowCosts)

    def goes_on(self, reached: Any) -> Any:
        """Tell whether a level that is ``reached`` with such a chance is worth its price; number or array."""
        return reached * self.rule.worth > self.rule.rate * (self.costs.level + self.costs.row)

    def looked_up(self, survives: np.ndarray) -> tuple[Any, Any]:
        """Choose how many tokens of a lookup are submitted, by the chances ``survives`` [..., L] that its first ones are all
        right, and return the chance left to a chain."""
        pays = survives > self.rule.rate * self.costs.row
        return pays.sum(axis=-1), 1 - np.where(pays, survives, 0.0)[..., 0]

    def widths(self, values: np.ndarray, beside: Any = 0) -> np.ndarray:
        """Choose the candidates of each level [..., L] to submit by all ``values`` [..., L, K], ``beside`` so many nodes."""
        prices = np.array(self.costs.nodes)
        flat = -np.sort(-values.reshape(*values.shape[:-2], -1), axis=-1)[..., : len(prices) - 1]
        place = np.asarray(beside)[..., None] + np.arange(flat.shape[-1] + 1)
        cost = prices[np.minimum(place, len(prices) - 1)]
        gains = np.cumsum(flat, axis=-1) - self.rule.rate * (cost[..., 1:] - cost[..., :1])
        gains = np.where(place[..., 1:] < len(prices), gains, -np.inf)
        return best_of(values, np.where(gains.max(axis=-1) > 0, gains.argmax(axis=-1) + 1, 0))


def best_of(values: np.ndarray, count: Any) -> np.ndarray:
    """Take, of all ``values`` [..., L, K], the ``count`` [...] largest; return how many those are by level [..., L]."""
    flat = values.reshape(*values.shape[:-2], -1)
    place = np.argsort(np.argsort(-flat, axis=-1, kind="stable"), axis=-1, kind="stable")
    return (place < np.asarray(count)[..., None]).reshape(values.shape).sum(axis=-1)
