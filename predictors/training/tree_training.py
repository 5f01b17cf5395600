"""Train a selector of one rule: its rows, of features, labels and seconds by action; standardisation, Lightning, and the epoch
whose hard choices are best on validation roots. Two objectives:

``tokens``: expected tokens of every action, with an error in units of its mean over training roots, Ē_a:

    loss = mean_{i, a} ((exp g_a(x_i) - E_a(x_i)) / Ē_a)²

``throughput`` (paper 004, Eqs. 4, 5 and 12, in log form): tokens per second of a policy against the static choice, and not losing
much anywhere:

    π(a | x) = softmax_a β (g_a(x) - log T_a(x))                       β = 20: 5 % more tokens per second are e times as likely
    TPS_π(x) = Σ_a π(a|x) E_a(x) / Σ_a π(a|x) T_a(x)                   E: expected tokens of a step, T: its seconds
    s_i = log TPS_π(x_i) - log (E_b / T_b)(x_i)                        b: the static action of the row's sampling setting
    loss = -(1/N) Σ_i s_i + λ (1/|I|) Σ_{i in I} [-s_i]_+              I: the ⌈α N⌉ largest [-s_i]_+ of the batch

I counts as constant. d s_i / d logit_a = π_a (E_a / E_π - T_a / T_π). A factor of all E of a root does not matter to it. The
first learns from every action of every root, the second from those that the policy takes (docs/tried.md has both). Source:
specification of verification, section 8. Shape suffixes: N roots, B rows, D draws, A actions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from predictors.actions import Action, Prices, Traffic
from predictors.config import Checked, Count, NotNegative, Positive, Share, above, at_most, of_length, one_of
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.training.tables import RootTable
from predictors.training.trainer import Batches, TrainConfig, Trained, Training, fitted, seeded, standardise
from predictors.tree_choice import (
    RATIO,
    SURPLUS,
    SelectionRule,
    SelectionSpec,
    SelectorNetwork,
    Setting,
    Static,
    assembled,
)

Judged = tuple[np.ndarray, np.ndarray]  # a selector's expected tokens [N, A] and squared distances [N]
SHARPNESS = 20.0
TOKENS, THROUGHPUT = OBJECTIVES = ("tokens", "throughput")
SCORED = {TOKENS: (SURPLUS, RATIO), THROUGHPUT: (RATIO,)}  # what the outputs of either can be scored by


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


def token_error(logs_BA: Tensor, efficiency_BA: Tensor, mean_A: Tensor) -> Tensor:
    """Compute the loss of expected tokens."""
    return ((logs_BA.exp() - efficiency_BA) / mean_A).square().mean()


def log_gain(logits_BA: Tensor, efficiency_BA: Tensor, seconds_BA: Tensor, static_B: Tensor) -> Tensor:
    """Compute s [B] of the policy softmax(``logits_BA``) over the static actions ``static_B``."""
    policy_BA = torch.softmax(logits_BA, dim=1)
    policy_B = (policy_BA * efficiency_BA).sum(1).log() - (policy_BA * seconds_BA).sum(1).log()
    static_B1 = static_B.unsqueeze(1)
    return policy_B - (efficiency_BA.gather(1, static_B1) / seconds_BA.gather(1, static_B1)).log().squeeze(1)


def objective(gain_B: Tensor, penalty: float, worst: float) -> Tensor:
    """Compute the loss of gains ``s``: λ is ``penalty``, α is ``worst``.

    Examples
    --------
    >>> round(float(objective(torch.tensor([0.3, -0.1, -0.2, 0.0]), penalty=2.0, worst=0.5)), 6)
    0.3
    """
    regret_B = (-gain_B).clamp(min=0)
    worst_I = regret_B.topk(math.ceil(worst * len(gain_B))).values
    return -gain_B.mean() + penalty * worst_I.mean()


@dataclass(frozen=True)
class Candidate(Checked):
    """A selector to train: for ``objective``, reading both models' hidden ``states`` or the scalars alone."""

    objective: Annotated[str, one_of(*OBJECTIVES)] = TOKENS
    states: bool = False

    @property
    def name(self) -> str:
        """Name of the candidate, such as ``tokens-states``."""
        return f"{self.objective}-{'states' if self.states else 'scalars'}"


@dataclass(frozen=True)
class SelectorConfig(TrainConfig):
    """Training of a selector: ``width`` that hidden states are projected to, the MLP's ``hidden_sizes``, and of objective
    throughput the ``penalty`` λ and ``worst`` fraction α."""

    width: Count = 64
    hidden_sizes: Annotated[tuple[Count, ...], of_length(2)] = (512, 32)
    dropout: Share = 0.2
    penalty: NotNegative = 0.5
    worst: Annotated[float, above(0), at_most(1)] = 0.1
    learning_rate: Positive = 3e-4
    weight_decay: NotNegative = 1e-2
    epochs: Count = 60
    batch_size: Count = 128
    stop_patience: Count = 15


class SelectorTraining(Training[SelectorNetwork]):
    """Training of a selector. ``val_loss`` is minus the logarithm of the choices' tokens per second over the static ones', both
    ratios of sums, by surplus with κ = 1 (trained for throughput: by ratio) and without a margin: what is monitored is what is
    served. The loss itself is logged as ``val_objective``."""

    mean: Tensor

    def __init__(self, network: SelectorNetwork, objective: str, mean_A: Tensor, config: SelectorConfig) -> None:
        super().__init__(network, config, lambda head, batch: self._loss(batch, head(batch[0])))
        self.objective, self.penalty, self.worst = objective, config.penalty, config.worst
        self.register_buffer("mean", mean_A)
        self._sums = torch.zeros(4)

    def _loss(self, batch: tuple[Tensor, ...], logs_BA: Tensor) -> Tensor:
        _, efficiency, seconds, static, _ = batch
        if self.objective == TOKENS:
            return token_error(logs_BA, efficiency, self.mean)
        gain_B = log_gain(SHARPNESS * (logs_BA - seconds.log()), efficiency, seconds, static)
        return objective(gain_B, self.penalty, self.worst)

    def on_validation_epoch_start(self) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64)

    def validation_step(self, batch: tuple[Tensor, ...], index: int) -> None:
        features, efficiency, seconds, static, rate = batch
        logs = self.head(features)
        surplus = logs.exp() - rate.unsqueeze(1) * seconds
        best = (surplus if self.objective == TOKENS else logs - seconds.log()).argmax(1)
        for place, chosen in ((0, best), (2, static)):
            for offset, amounts in ((0, efficiency), (1, seconds)):
                self._sums[place + offset] += amounts.gather(1, chosen.unsqueeze(1)).double().sum()
        self.log("val_objective", self._loss(batch, logs), batch_size=len(features))

    def on_validation_epoch_end(self) -> None:
        tokens, seconds, static_tokens, static_seconds = self._sums.log()
        self.log("val_loss", (static_tokens - static_seconds - tokens + seconds).float())


def fit_selector(
    labelling: Labelling, train: SelectorRows, validation: SelectorRows, goal: str, config: SelectorConfig
) -> Trained[SelectorNetwork]:
    """Train on ``train`` for objective ``goal``, choose the epoch by ``validation``; the same for the same rows, config and
    number of threads."""
    mean_A = train.efficiency_NA.mean(axis=0)
    with seeded(config):
        first, second = config.hidden_sizes
        network = SelectorNetwork(labelling.spec, config.width, (first, second), config.dropout)
        standardise(network.mean, network.scale, train.features)
        last = network.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # untrained it expects an action's mean tokens, whatever the features
            last.weight.zero_()
            last.bias.copy_(torch.from_numpy(np.log(mean_A)))
        module = SelectorTraining(network, goal, torch.from_numpy(mean_A).float(), config)
        trained = fitted(module, _in_memory(train), _in_memory(validation))
        with torch.no_grad():  # the space that distances are measured in
            standardise(network.centre, network.spread, network.reduced(train.features))
    return trained


def _in_memory(rows: SelectorRows) -> Batches:
    """Put rows in memory: features, expected tokens, seconds, static indices and their tokens per second."""
    return Batches(
        rows.features,
        torch.from_numpy(rows.efficiency_NA).float(),
        torch.from_numpy(rows.seconds_NA).float(),
        torch.from_numpy(rows.static_N),
        torch.from_numpy(rows.rate_N).float(),
    )
