"""Rows to learn a selector of one rule from: features, labels and seconds by action, the static choice; and outcomes of choices.

Shape suffixes: N roots, D draws, A actions (those that the rule takes).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from predictors.actions import Action, Prices, Traffic
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.training.tables import RootTable
from predictors.tree_choice import SelectionRule, SelectionSpec, Setting, Static, assembled

Judged = tuple[np.ndarray, np.ndarray]  # a selector's expected tokens [N, A] and squared distances [N]


@dataclass(frozen=True)
class SelectorRows:
    """Rows of a selector: ``features`` [N, S + C]; ``efficiency_NA``: labels, means of ``efficiency_NDA`` by draw;
    ``seconds_NA``, what steps are expected to cost, and ``spent_NA``, what they cost with the root's own trees; ``decision``:
    seconds of choosing; ``static_N`` and ``rate_N``: index of the row's static action and its tokens per second; ``table`` has
    the rows' documents, slices and settings."""

    features: Tensor
    efficiency_NA: np.ndarray
    efficiency_NDA: np.ndarray
    seconds_NA: np.ndarray
    spent_NA: np.ndarray
    decision: float
    static_N: np.ndarray
    rate_N: np.ndarray
    table: RootTable

    def __len__(self) -> int:
        return len(self.features)

    @property
    def by_setting(self) -> dict[str, np.ndarray]:
        """Masks [N] of the rows of each sampling setting, by its name."""
        return {made.name: self.table.setting_N == number for number, made in enumerate(self.table.settings)}

    def outcome(self, places_N: np.ndarray, decision: float) -> "Outcome":
        """Evaluate the actions at ``places_N``, labelled by all draws, and ``decision`` seconds each."""
        return Outcome(at(self.efficiency_NA, places_N), at(self.spent_NA, places_N) + decision, places_N)

    @property
    def static(self) -> "Outcome":
        """Outcome of the static choice of every root's setting."""
        return self.outcome(self.static_N, 0.0)

    def chosen(self, said: Judged, rule: SelectionRule) -> "Outcome":
        """Choose by ``rule`` from a selector's outputs at every root; an untrusted root is static."""
        if not rule.asks:
            return self.static
        tokens_NA, distance_N = said
        places_N = rule.chosen(tokens_NA, self.seconds_NA, self.static_N, self.rate_N)
        return self.outcome(np.where(distance_N <= rule.max_distance, places_N, self.static_N), self.decision)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a policy's choices at every root: expected tokens [N] and seconds [N], and the ``places`` chosen."""

    tokens: np.ndarray
    seconds: np.ndarray
    places: np.ndarray | None = None

    @property
    def throughput(self) -> float:
        """Throughput in tokens per second, as a ratio of sums."""
        return float(self.tokens.sum() / self.seconds.sum())

    def at(self, mask_N: np.ndarray) -> "Outcome":
        return Outcome(self.tokens[mask_N], self.seconds[mask_N])


def at(values_NA: np.ndarray, places_N: np.ndarray) -> np.ndarray:
    """Take each root's value [N] of one action."""
    return np.asarray(np.take_along_axis(values_NA, places_N[:, None], axis=1)[:, 0])


@dataclass(frozen=True)
class Labelling:
    """Labelling of a collection's roots for ``rule``: which of their actions it takes (``columns``), at what prices for what
    ``traffic``, how many seconds one more node and one more fed node would take at it [A], and the training roots' sampling
    settings. A new machine's profile changes prices, and nothing in the traces."""

    rule: str
    spec: SelectionSpec
    columns: tuple[int, ...]
    prices: Prices
    traffic: tuple[Traffic, ...]
    node_seconds: np.ndarray
    fed_seconds: np.ndarray
    settings: tuple[Setting, ...]

    @staticmethod
    def of(table: RootTable, rule: str, profile: LatencyProfile, states: bool) -> "Labelling":
        """Label for ``rule``: settings, and nodes that prices count, are the training roots'; ``states``: these are read."""
        if rule not in table.manifest.rules:
            known = ", ".join(table.manifest.rules)
            raise ValueError(
                f"the tree traces have no labels for rule {rule!r}, only for {known}. Change traces.trees.rules."
            )
        train, place = table.rows("train"), table.manifest.rules.index(rule)
        efficiency_NA = train.mean_NKA[:, place]
        columns = tuple(np.flatnonzero(np.isfinite(efficiency_NA).all(axis=0)).tolist())
        whole = table.manifest.selection_spec
        actions = tuple(whole.actions[column] for column in columns)
        spec = replace(whole if states else whole.without_states(), actions=actions)
        traffic = tuple(train.traffic()[column] for column in columns)
        width = spec.state_size
        settings = tuple(
            Setting(
                setting.temperature,
                setting.top_k,
                setting.top_p,
                context=float(train.column("position")[train.setting_N == number].mean()),
                efficiency=tuple(efficiency_NA[train.setting_N == number][:, columns].mean(axis=0).tolist()),
            )
            for number, setting in enumerate(train.settings)
        )
        prices = RoundPrices(profile, sampled=True)
        made = prices.actions(rule, actions, traffic, width)
        more = [
            prices.actions(rule, actions, [Traffic(one.nodes + nodes, one.fed + fed) for one in traffic], width)
            for nodes, fed in ((1, 0), (0, 1))
        ]
        middle = float(train.column("position").mean())
        node, fed = (priced.at(middle) - made.at(middle) for priced in more)
        return Labelling(rule, spec, columns, made, traffic, node, fed, settings)

    @property
    def actions(self) -> Sequence[Action]:
        return self.spec.actions

    def statics(self) -> list[Static]:
        """Find the static action of every setting."""
        return [setting.static(self.prices) for setting in self.settings]

    def rows(self, table: RootTable) -> SelectorRows:
        place = table.manifest.rules.index(self.rule)
        seconds_NA = self.prices.rows(table.column("position"))
        columns = list(self.columns)
        own_NA = self.node_seconds * (table.nodes_NA[:, columns] - [one.nodes for one in self.traffic])
        own_NA += self.fed_seconds * (table.fed_NA[:, columns] - [one.fed for one in self.traffic])
        states = torch.from_numpy(np.array(table.column("state"))) if self.spec.layers else None
        scalars = torch.from_numpy(np.array(table.column("scalars")))
        of_setting = dict(zip([one.sampling for one in self.settings], self.statics(), strict=True))
        statics = [of_setting[made] for made in table.settings]
        return SelectorRows(
            assembled(states, scalars),
            table.mean_NKA[:, place][:, columns],
            table.efficiency_NDKA[:, :, place][:, :, columns],
            seconds_NA,
            seconds_NA + own_NA,
            self.prices.decision_seconds,
            np.array([static.place for static in statics])[table.setting_N],
            np.array([static.rate for static in statics])[table.setting_N],
            table,
        )
