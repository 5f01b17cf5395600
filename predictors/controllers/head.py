"""Controllers with a head that classifies: over one feature set, for drafting and for what is retained of a branch.

The ``paper`` feature set is known at the root and decides before drafting; the ``extended`` set reads the first draft law and
decides before its token is drawn. Both are lossless. What to retain of a branch that survived has thresholds of its own: its
tokens are drafted already. Where the head has no calibration, meets states far from its training
rows or returns NaN, the round is decoded at the best static γ, with one warning per kind of reason.

Shape suffixes: L classes of the head, S state size.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from predictors.bundle import REMEDY, Bundle
from predictors.calibration import Calibration
from predictors.config import parse_config
from predictors.controllers.base import Session
from predictors.controllers.guard import Guard
from predictors.controllers.learned import LearnedController
from predictors.decision_rule import Thresholds
from predictors.features import FeatureSpec, served_features
from predictors.latency.profile import LatencyProfile
from predictors.network import ServedHead, build_network
from predictors.rounds import Forecast
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root


class HeadSession(Session):
    """One request: bypassed rounds draft the best static γ, all others what a subclass makes of the head's ``decision``."""

    def __init__(self, controller: "HeadController", settings: SamplingSettings) -> None:
        self.controller = controller
        self.spec = controller.spec
        self.decision: int | None = None
        self.retains = False  # decides on a branch that survived
        self.uncalibrated = not controller.guard.covers(settings)
        self.bypassed = False
        self.forecasts: list[Forecast] = []

    def plan(self, root: Root) -> int | None:
        self.asked, self.forecasts = 0, []
        self.retains = root.previous is not None and not root.previous.ends_segment
        self.decision = self.controller.settled(self.retains)
        self.bypassed = self.uncalibrated or not self.controller.guard.reaches(root.position)
        if not self.bypassed and self.decision is None and self.spec.decides_before_drafting:
            self.decision = self._decide(root, None)
        if self.bypassed:
            return self._static_gamma
        return self.spec.gamma if self.decision is None else self._most(self.decision)

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if not self.bypassed and self.decision is None:
            self.decision = self._decide(law.root, law)
        if self.bypassed:
            return law.drafted >= self._static_gamma
        assert self.decision is not None
        return self._stops(self.decision, law)

    @property
    def _static_gamma(self) -> int:
        return self.controller.thresholds.static(self.retains)

    def _most(self, decision: int) -> int:
        """Most tokens to draft once the decision is known at the root."""
        raise NotImplementedError

    def _stops(self, decision: int, law: NextLaw) -> bool | Tensor:
        """Whether to stop before the next token."""
        raise NotImplementedError

    def _decide(self, root: Root, law: NextLaw | None) -> int | None:
        """The head's decision; ``None``, and the round is bypassed, where it cannot be trusted."""
        self.asked += 1
        probabilities_L, distance, sketch = self.controller.predict(root, law)
        finite = bool(torch.isfinite(probabilities_L).all())
        if finite:
            self.forecasts.append(
                Forecast(0, 1 - float(probabilities_L[0]), distance, sketch)
            )  # class 0: nothing is accepted
        self.bypassed = not self.controller.guard.trusts(finite, distance, self.controller.thresholds.max_distance)
        return None if self.bypassed else self.controller.decide(probabilities_L, self.retains)


class HeadController(LearnedController):
    """The controller of an exported bundle (`predictors.bundle`). Subclasses say what the head's classes mean."""

    thresholds_class: ClassVar[type[Thresholds]]

    def __init__(self, bundle: Bundle) -> None:
        card = bundle.card
        bundle.require(self.kind, "feature_spec", "calibration", "thresholds")
        where = f"{bundle.source}: card.json"
        self.spec = parse_config(FeatureSpec, card["feature_spec"], f"{where}: feature_spec")
        self.calibration = parse_config(Calibration, card["calibration"], f"{where}: calibration")
        self.thresholds = parse_config(self.thresholds_class, card["thresholds"], f"{where}: thresholds")
        self.contract = bundle.contract
        self.layers = self.spec.layers
        self.gamma = self.spec.gamma
        bundle.require_layers(self.layers, "feature_spec")
        self.network = build_network(self.spec, bundle.tensors, bundle.source)
        for what, count in (("the head", self.network.num_classes), ("calibration.bias", len(self.calibration.bias))):
            if count != self.num_classes:
                raise ValueError(
                    f"{where}: {self.kind} at gamma={self.gamma} has {self.num_classes} classes, but {what} has {count}. "
                    f"{REMEDY}"
                )
        self.guard = Guard(self.kind, self.contract, self._static_setting())

    @property
    def num_classes(self) -> int:
        """Classes of the head."""
        raise NotImplementedError

    @property
    def num_features(self) -> int:
        return self.spec.state_size + len(self.spec.scalars)

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    def outputs(self, features: Tensor) -> Tensor:
        """Calibrated class probabilities [B, L] of raw features [B, S + C]."""
        return self.calibration.probabilities(self.network(features))

    def question_seconds(self, profile: LatencyProfile) -> float:
        return profile.latency("predictor", features=self.num_features).seconds

    def settled(self, retains: bool) -> int | None:
        """The decision that is the calibrated rule's whatever the head says, which is not asked then; ``None``: it depends."""
        return None

    def decide(self, probabilities_L: Tensor, retains: bool) -> int:
        """The decision of the calibrated rule for drafting, or for what is retained of a branch."""
        raise NotImplementedError

    @torch.inference_mode()
    def predict(self, root: Root, law: NextLaw | None) -> tuple[Tensor, float, tuple[float, ...]]:
        """Calibrated class probabilities [L], the squared distance of the features from the training rows, and their sketch."""
        if root.hidden_KD is None or root.embedding_E is None:
            raise ValueError(
                f"{self.kind} needs target hidden states, and this decoder taps none. Build it with build_decoder."
            )
        said = self.said(self.features(root, law))
        distance, *sketch = said[self.num_classes :].tolist()
        return said[: self.num_classes], distance, tuple(sketch)

    def serve(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        served, bias = ServedHead(self.network, device), torch.tensor(self.calibration.bias, device=device)
        return lambda features: served.row(features, self.calibration, bias)

    def features(self, root: Root, law: NextLaw | None) -> Tensor:
        """Raw features [1, S + C] of a round (`predictors.features`)."""
        return served_features(self.spec, root, law)

    def _static_setting(self) -> str:
        """How decoding goes on where the controller stands aside."""
        static, retained = (self.thresholds.static(retains) for retains in (False, True))
        branches = f", keeping at most {retained} tokens of a branch" if retained != static else ""
        return f"the best static gamma={static}{branches}"
