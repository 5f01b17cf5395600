"""Stop models: draft until what is drafted is unlikely to survive (MCSD's decision models, SpecDec++, a logistic regression).

    stop where P̂, of the token or Π P̂ along the draft, falls below the threshold              `predictors.stopping`

One class of controller; kinds differ in what their exported network reads (`predictors.stopping`) and in its shape. A
model of ``law`` or ``before`` scores the token about to be drawn, one of ``behind`` the token just fed. On a tree the best of
a level's nodes decides for it: drafting ends where no chain is likely to go on (MCSD's rule).

Shape suffixes: E nodes of a level, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from predictors.bundle import Bundle
from predictors.controllers.learned import LARGEST_FACTOR, LearnedSession, RuledConfig, RuledController
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.rounds import Forecast
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root
from predictors.stopping import (
    BEHIND,
    INPUTS,
    LAW,
    NetworkShape,
    StopPrices,
    StopRule,
    StopSetting,
    StopSpec,
    build_stop_network,
    features_of,
)


@dataclass(frozen=True)
class StopConfig(RuledConfig):
    """Configuration of a stop model. ``threshold``, if given, replaces the exported rules: drafting stops where the chance,
    or its ``product`` along the draft, is lower; ``keeps`` the token about to be drawn, as MCSD (`predictors.stopping`)."""

    threshold: float | None = None
    product: bool = False
    keeps: bool = True


class StopSession(LearnedSession):
    controller: "EarlyStop"
    setting: StopSetting
    score = 1.0
    last = False  # the level about to be drawn is kept, and the last one

    @property
    def stops(self) -> bool:
        return self.setting.rule.asks  # else drafts are planned

    def plan(self, root: Root) -> int | None:
        self.begin(root, self.stops)
        self.score, self.last = 1.0, False
        return None if self.stops and not self.bypassed else self.setting.static_length

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        return self._stops([law])

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        return [self._stops(laws)] * len(laws)

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        return self.last

    def _stops(self, laws: Sequence[NextLaw]) -> bool:
        """Decide whether to stop before the next token of all these nodes."""
        rule, drafted = self.setting.rule, laws[0].drafted
        self.last = False
        if not self.bypassed and rule.asks_at(drafted, self.controller.inputs):
            self._read(laws)
        if self.bypassed or not rule.asks:
            return drafted >= self.setting.static_length
        stops = bool(rule.stops(self.score, drafted))
        self.last = stops and rule.keeps
        return stops and not rule.keeps

    def _read(self, laws: Sequence[NextLaw]) -> None:
        chances_E, distance, sketch = self.controller.predict(laws)
        best = max(chances_E)
        said = Forecast(self.controller.position(laws[0]), best, distance, sketch)
        self.heard(said, finite=all(map(math.isfinite, (*chances_E, distance))))
        self.score = self.score * best if self.setting.rule.product else best


class EarlyStop(RuledController):
    """Stops drafting by an exported model of acceptance: the controller of a bundle of kind ``early_stop``."""

    kind = "early_stop"
    config_class, setting_class, prices_class = StopConfig, StopSetting, StopPrices
    follows_one_draft = True
    settings: tuple[StopSetting, ...]
    prices: StopPrices

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, "stop_spec", "inputs", "network")
        self.spec = bundle.part(StopSpec, "stop_spec")
        self.inputs = str(bundle.card["inputs"])
        if self.inputs not in INPUTS:
            raise ValueError(f"{bundle.source}: card.json: unknown inputs {self.inputs!r}; known: {', '.join(INPUTS)}.")
        shape = bundle.part(NetworkShape, "network")
        self.network = build_stop_network(self.num_features, shape, bundle.tensors, bundle.source)
        self._tap()

    def start(self, settings: SamplingSettings) -> StopSession:
        return StopSession(self, settings)

    def under(self, config: StopConfig) -> Self:
        if config.threshold is None:
            return super().under(config)
        rule = StopRule(config.threshold, config.product, config.keeps)
        return self.with_settings(replace(made, rule=rule) for made in self.settings)

    def asked_anyway(self) -> Self:
        return self.with_settings(replace(made, rule=made.tried) for made in self.settings)

    @property
    def asks(self) -> bool:
        """True if the model is run at any captured setting."""
        return any(made.rule.asks for made in self.settings)

    def _tap(self) -> None:
        self.draft_layers = self.spec.draft_layers if self.inputs != LAW and self.asks else ()

    def doubt(self, profile: LatencyProfile) -> str | None:
        made = self.prices
        here = RoundPrices(profile, sampled=True).draft_cost(made.gamma, made.context)
        if max(here / made.draft_cost, made.draft_cost / here) <= LARGEST_FACTOR:
            return None
        return (
            f"{self.kind} was exported for a machine on which a drafted token costs {made.draft_cost:.2f} target passes, and "
            f"here it is {here:.2f} (more than {LARGEST_FACTOR} times apart): its rules may not pay. Export the bundle here "
            "(dvc repro)."
        )

    @property
    def num_features(self) -> int:
        return self.spec.size(self.inputs)

    def outputs(self, features: Tensor) -> Tensor:
        """Compute calibrated probabilities of acceptance [B, S] of a draft's first token, from raw features [B, F], at every
        captured sampling setting."""
        of_setting = [made.calibration for made in self.settings]
        scale_S, bias_S = (torch.tensor([getattr(one, name) for one in of_setting]) for name in ("scale", "bias"))
        return torch.sigmoid(scale_S * self.network(features).unsqueeze(1) + bias_S)

    def question_seconds(self, profile: LatencyProfile) -> float:
        return profile.latency("stopping", features=self.num_features).seconds

    @torch.inference_mode()
    def predict(self, laws: Sequence[NextLaw]) -> tuple[list[float], float, tuple[float, ...]]:
        """Predict probabilities of acceptance [E] at a level's nodes; also return the largest squared distance of their features
        from the training rows, and the first node's sketch."""
        said, count = self.said(torch.stack([self.features(law) for law in laws])).tolist(), len(laws)
        calibration, before = self.setting(laws[0].root.settings).calibration, self.position(laws[0])
        return [calibration.after(before, logit) for logit in said[:count]], said[count], tuple(said[count + 1 :])

    def position(self, law: NextLaw) -> int:
        """Return the number of tokens of the draft before the one that is judged where ``law`` is known."""
        return law.drafted - (self.inputs == BEHIND)

    def features(self, law: NextLaw) -> Tensor:
        """Read raw features [F] in float32 of a draft's next distribution."""
        return features_of(law, self.spec, self.inputs)


class SpecDecPP(EarlyStop):
    """SpecDec++: a residual head on the state after each drafted token."""

    kind = "specdecpp"


class Logistic(EarlyStop):
    """A logistic regression on the draft's distribution."""

    kind = "logistic"
