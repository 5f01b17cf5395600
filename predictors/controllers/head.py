"""Controllers with a head that classifies the fate of the next γ drafted tokens: H-RAD's class, or the accepted length.

    hrad      s = rule(P(c | features))     s = 0: draft nothing      s = 1: draft while max_x q(x) >= ε (at least one token)
                                            s = 2: draft all γ        (SpecBranch, section 4)
    length    n = rule(P(a | features))     draft exactly n tokens    (SpecBranch's Fig. 3 and Table 19; after AdaEAGLE)

Rules are the papers' argmax or chosen (`predictors.head`). The ``paper`` feature set decides before drafting; the
``extended`` set reads the draft's first distribution and decides before its token is drawn: its pass is paid even where nothing
is drafted. Both are lossless. Every captured sampling setting has a calibration and rules of its own, for drafting and for what
is retained of a branch that survived; where none pays, the best static γ is planned and no head is run.
Shape suffixes: L classes of the head, S state size.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from predictors.bundle import REMEDY, Bundle
from predictors.controllers.base import Session
from predictors.controllers.learned import LearnedSession, RuledController
from predictors.head import CLASSES, Calibration, DecisionRule, FeatureSpec, HeadSetting, build_network, served_features
from predictors.latency.profile import LatencyProfile
from predictors.rounds import Forecast
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root

RULES = ("rule", "retention", "tried", "tried_retention")  # of a setting


class HeadSession(LearnedSession):
    """Decisions within one request: the head's ``decision``; bypassed rounds and those without a rule draft the static γ."""

    controller: "HeadController"
    decision: int | None = None
    retains = False  # decides on a branch that survived

    @property
    def stops(self) -> bool:
        return any(self.setting.of(retains) is not None for retains in (False, True))  # else drafts are planned

    @property
    def rule(self) -> Any:
        """Rule of this round; ``None`` where no rule pays."""
        return self.setting.of(self.retains)

    def plan(self, root: Root) -> int | None:
        self.begin(root, asks=False)
        self.retains = root.previous is not None and not root.previous.ends_segment
        if self.rule is None:
            return self._limits()[0]
        self.decision = self.rule.settled
        listens = self.decision is None
        self.bypassed = self.uncalibrated or (listens and not self.controller.guard.reaches(root.position))
        if not self.bypassed and listens and self.controller.spec.decides_before_drafting:
            self._decide(root, None)
        return self.controller.spec.gamma if self.decision is None and not self.bypassed else self._limits()[0]

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if not self.bypassed and self.rule is not None and self.decision is None:
            self._decide(law.root, law)
        most, epsilon = self._limits()
        return law.drafted >= most if epsilon is None else law.drafted >= 1 and law.confidence < epsilon

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        return self.controller.stops_after and drawn.drafted >= self._limits()[0]

    def _limits(self) -> tuple[int, float | None]:
        """Return the most tokens this round, and the confidence below which a soft draft stops."""
        if self.bypassed or self.rule is None:
            return self.setting.static(self.retains), None
        assert self.decision is not None
        limits: tuple[int, float | None] = self.rule.limits(self.decision, self.controller.spec.gamma)
        return limits

    def _decide(self, root: Root, law: NextLaw | None) -> None:
        """Run the head; where it cannot be trusted the round is bypassed."""
        probabilities_L, distance, sketch = self.controller.predict(root, law)
        accepts = 1 - float(probabilities_L[0])  # class 0: nothing is accepted
        self.heard(Forecast(0, accepts, distance, sketch), finite=bool(torch.isfinite(probabilities_L).all()))
        self.decision = None if self.bypassed else int(self.rule.decisions(probabilities_L.unsqueeze(0)))


@dataclass(frozen=True)
class HeadPrices:
    """Latency profile, by its hash, that rules were chosen by."""

    profile_hash: str


class HeadController(RuledController):
    """Controller of an exported head. Subclasses define the meaning of the head's classes."""

    setting_class, prices_class = HeadSetting, HeadPrices
    stops_after = False  # with the token that a decision allows last: no distribution is computed only to stop
    instead = "the best static gamma of the nearest captured settings"
    prices: HeadPrices

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle, "feature_spec")
        where = f"{bundle.source}: card.json"
        if not self.max_distance > 0:
            raise ValueError(f"{where}: max_distance must be > 0, got {self.max_distance}.")
        self.spec = bundle.part(FeatureSpec, "feature_spec")
        self.horizon = self.spec.gamma
        bundle.require_layers(self.spec.layers, "feature_spec")
        self.network = build_network(self.spec, bundle.tensors, bundle.source)
        counts = {
            f"settings[{place}]: calibration.bias": len(made.calibration.bias)
            for place, made in enumerate(self.settings)
        }
        for what, count in {"the head": self.network.num_classes, **counts}.items():
            if count != self.num_classes:
                raise ValueError(
                    f"{where}: {self.kind} at gamma={self.horizon} has {self.num_classes} classes, but {what} has {count}. "
                    f"{REMEDY}"
                )
        self._tap()

    @property
    def num_classes(self) -> int:
        """Number of classes of the head."""
        raise NotImplementedError

    def start(self, settings: SamplingSettings) -> Session:
        return HeadSession(self, settings)

    def asked_anyway(self) -> Self:
        return self.with_settings(
            replace(made, rule=made.tried, retention=made.tried_retention) for made in self.settings
        )

    def _tap(self) -> None:
        rules = [made.of(retains) for made in self.settings for retains in (False, True)]
        listens = any(rule is not None and rule.settled is None for rule in rules)
        self.layers = self.spec.layers if listens else ()

    def doubt(self, profile: LatencyProfile) -> str | None:
        if self.prices.profile_hash == profile.profile_hash:
            return None
        return (
            f"the rules of {self.kind} were chosen by another latency profile: on this machine they may not pay. Export the "
            "bundle here (dvc repro)."
        )

    @property
    def num_features(self) -> int:
        return self.spec.state_size + len(self.spec.scalars)

    def outputs(self, features: Tensor) -> Tensor:
        """Compute calibrated class probabilities of raw features [B, S + C], at one captured setting after the other."""
        logits = self.network(features)
        return torch.cat([made.calibration.probabilities(logits) for made in self.settings], dim=1)

    def question_seconds(self, profile: LatencyProfile) -> float:
        return profile.latency("predictor", features=self.num_features).seconds

    @torch.inference_mode()
    def predict(self, root: Root, law: NextLaw | None) -> tuple[Tensor, float, tuple[float, ...]]:
        """Predict calibrated class probabilities [L], the features' squared distance from the training rows, and their sketch."""
        if root.hidden_KD is None or root.embedding_E is None:
            raise ValueError(
                f"{self.kind} needs target hidden states, and this decoder taps none. Build it with build_decoder."
            )
        said = self.said(self.features(root, law))
        distance, *sketch = said[self.num_classes :].tolist()
        calibration: Calibration = self.setting(root.settings).calibration
        return calibration.probabilities(said[: self.num_classes]), distance, tuple(sketch)

    def features(self, root: Root, law: NextLaw | None) -> Tensor:
        """Read raw features [1, S + C] of a round (`predictors.head`)."""
        return served_features(self.spec, root, law)


class HRAD(HeadController):
    kind = "hrad"

    @property
    def num_classes(self) -> int:
        return len(CLASSES)

    def with_epsilon(self, epsilon: float) -> "HRAD":
        def soft(rule: DecisionRule | None) -> DecisionRule | None:
            return rule and replace(rule, epsilon=epsilon)

        return self.with_settings(
            replace(made, **{name: soft(getattr(made, name)) for name in RULES}) for made in self.settings
        )


class Length(HeadController):
    kind = "length"
    stops_after = True

    @property
    def num_classes(self) -> int:
        return self.spec.gamma + 1
