"""Controller ``survival``: draft on while the chain's chance to survive, times what comes next, is worth its price.

After every drawn token, once `least` are drawn, a small network on the host predicts how likely this token and the next are
accepted (`predictors.survival`). The decision falls after the token, which is kept and verified: lossless, and no draft pass is
paid for a token that is not submitted. Tokens before the first decision are caught up with it."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from predictors.bundle import Bundle
from predictors.controllers.base import Rerun
from predictors.controllers.learned import LearnedSession, RuledConfig, RuledController, ratio_doubt
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.rounds import Forecast, RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, Root, token_numbers
from predictors.survival import (
    FIRST_LUCK,
    SCALARS,
    Answering,
    Course,
    RatioPrices,
    SurvivalNetwork,
    SurvivalSetting,
    build_survival_network,
    luck_after,
)


@dataclass(frozen=True)
class SurvivalConfig(RuledConfig):
    """Configuration of ``survival``; ``rate``, if given, replaces ρ at all settings."""

    rate: float | None = None


class SurvivalSession(LearnedSession):
    controller: "Survival"
    setting: SurvivalSetting

    def __init__(self, controller: "Survival", settings: SamplingSettings) -> None:
        super().__init__(controller, settings)
        self.greedy = float(settings.read_off)
        self.luck, self.rejected = FIRST_LUCK, 0.0

    @property
    def stops(self) -> bool:
        return self.setting.pays  # else drafts are planned

    @property
    def reads_lookup(self) -> bool:
        return self.setting.pays

    def plan(self, root: Root) -> int | None:
        self.begin(root, self.stops)
        if self.bypassed or not self.stops:
            return self.setting.static_length
        self._proposed = () if root.found is None else root.found.tokens
        match = 0 if root.found is None else root.found.length
        self._course = Course(match, self.rejected, self.luck, self.greedy)
        self._survival, self._cap = 1.0, root.cap
        self._unread: list[DrawnToken] = []
        return None

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        setting, drafted = self.setting, drawn.drafted
        if self.bypassed or not setting.pays:
            return drafted >= setting.static_length
        if drafted < setting.rule.least:
            self._unread.append(drawn)
            return False
        if drafted == self._cap:
            return False
        for token in self._unread:
            self._read(token)
        self._unread = []
        following = self._read(drawn)
        if self.bypassed:
            return drafted >= setting.static_length
        return bool(setting.stops(self._survival, following, drafted))

    def _read(self, drawn: DrawnToken) -> float:
        """Take a token into account; return P(the next one is accepted, if it is)."""
        position = drawn.drafted - 1
        proposed = position < len(self._proposed) and self._proposed[position] == int(drawn.token)
        said = self.controller.answering.of_one(self._course.add(drawn.numbers(self.controller.look), proposed))
        chance, following = self.setting.chances(said)
        forecast = Forecast(position, chance, said.distance, said.sketch)
        self.heard(forecast, finite=math.isfinite(chance + following + said.distance))
        self._survival *= chance
        return float(following)

    def end_round(self, outcome: RoundRecord) -> None:
        accepted = outcome.accepted_in_sequence
        self.rejected = float(accepted < outcome.submitted)
        self.luck = luck_after(self.luck, accepted, self.rejected)


class Survival(RuledController):
    """Drafts while the chain is likely enough to survive: the controller of an exported bundle of kind ``survival``."""

    kind = "survival"
    config_class, setting_class, prices_class = SurvivalConfig, SurvivalSetting, RatioPrices
    scalars = SCALARS
    follows_one_draft = True
    network: SurvivalNetwork
    settings: tuple[SurvivalSetting, ...]
    prices: RatioPrices

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.network = build_survival_network(bundle.tensors, bundle.source)

    def under(self, config: SurvivalConfig) -> Self:
        if config.rate is None:
            return super().under(config)
        return self.with_settings(
            replace(made, rule=replace(made.rule, rate=config.rate), pays=True) for made in self.settings
        )

    def repriced(self, profile: LatencyProfile) -> Self:
        context, question = self.prices.context, self.question_seconds(profile)

        def here(made: SurvivalSetting) -> SurvivalSetting:
            rule, length = made.priced(profile.cost_ratio(context))
            prices = RoundPrices.at(profile, made.settings)
            costs = prices.chain_costs(len(made.costs) - 1, context, question)
            return replace(made, rule=rule, static_length=length, costs=costs)

        return self.with_settings(map(here, self.settings))

    def doubt(self, profile: LatencyProfile) -> str | None:
        remedy = "Load the bundle with reprice=True, or fit it here (dvc repro)."
        return ratio_doubt(self.kind, self.prices, profile, remedy)

    @property
    def num_features(self) -> int:
        return len(SCALARS)

    def outputs(self, features: Tensor) -> Tensor:
        """Compute chances of this token, calibrated at every captured setting, and of the next [B, 2 S]."""
        logits = self.network(features)
        of_setting = [made.calibration for made in self.settings]
        now = [torch.sigmoid(one.scale * logits[:, 0] + one.bias) for one in of_setting]
        return torch.stack([*now, *(torch.sigmoid(logits[:, 1]) for _ in of_setting)], dim=1)

    def question_seconds(self, profile: LatencyProfile) -> float:
        return profile.latency("survival", positions=1).seconds

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "look"}

    def start(self, settings: SamplingSettings) -> SurvivalSession:
        return SurvivalSession(self, settings)

    @cached_property
    def answering(self) -> Answering:
        """The network, on the host."""
        return Answering(self.network)

    @cached_property
    def look(self) -> Rerun:
        """Reader of a distribution's numbers on an accelerator, by one of its programs."""
        return Rerun(token_numbers, self._maker)
