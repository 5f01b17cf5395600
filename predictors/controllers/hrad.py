"""H-RAD: a three-class head says none, some or all of the next γ drafted tokens will be accepted (SpecBranch, section 4).

    s = rule(P(c | features))         s = 0: draft nothing      s = 2: draft all γ
                                      s = 1: draft while max_x q(x) >= ε (at least one token)

The rule is the paper's argmax or calibrated thresholds (`predictors.decision_rule`).

The ``paper`` feature set is known at the root and decides before drafting; the ``extended`` set reads the first draft law and
decides before its token is drawn. Both are lossless. Where the head has no calibration, meets states far from its training
rows or returns NaN, the round is decoded at the best static γ, with one warning per kind of reason.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from predictors.bundle import REMEDY, Bundle, read_bundle
from predictors.calibration import Calibration
from predictors.config import parse_config
from predictors.contract import ContractError
from predictors.controllers.base import Controller, Session
from predictors.decision_rule import ALL, NONE, HRADThresholds
from predictors.features import FeatureSpec, assemble, state_vector
from predictors.network import build_network, squared_distance
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root


@dataclass(frozen=True)
class HRADConfig:
    """``bundle``: folder of an exported controller."""

    bundle: str


class HRADSession(Session):
    def __init__(self, controller: "HRAD", settings: SamplingSettings) -> None:
        self.controller = controller
        self.spec = controller.spec
        self.decision: int | None = None
        self.uncalibrated = not controller.calibrated_for(settings)
        self.bypassed = False

    def plan(self, root: Root) -> int | None:
        self.decision = None
        self.bypassed = self.uncalibrated or self._outside(root.position)
        if not self.bypassed and self.spec.decides_before_drafting:
            self.decision = self._decide(root, None)
        if self.bypassed:
            return self.controller.thresholds.static_gamma
        return 0 if self.decision == NONE else self.spec.gamma

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        if self.bypassed:
            return law.drafted >= self.controller.thresholds.static_gamma
        if self.decision is None:
            self.decision = self._decide(law.root, law)
        if self.bypassed or self.decision == ALL:
            return False
        if self.decision == NONE:
            return True
        return law.drafted >= 1 and law.confidence < self.controller.thresholds.rule.epsilon

    def _outside(self, position: int) -> bool:
        """Whether this round's context is shorter or longer than any captured one."""
        assert self.controller.contract is not None
        captured = self.controller.contract.serving_range
        if captured.min_context <= position <= captured.max_context:
            return False
        reason = (
            f"a context of {position} tokens lies outside the captured {captured.min_context} to {captured.max_context}"
        )
        self.controller.warn_fallback("context", reason)
        return True

    def _decide(self, root: Root, law: NextLaw | None) -> int:
        probabilities, distance = self.controller.predict(root, law)
        if not bool(torch.isfinite(probabilities).all()):
            self._bypass("not finite", "its head returned a value that is not finite")
        elif distance > self.controller.thresholds.max_distance:
            self._bypass(
                "distance",
                f"the features lie at squared distance {distance:.1f} from the training rows, "
                f"beyond the calibrated {self.controller.thresholds.max_distance:.1f}",
            )
        return int(self.controller.thresholds.rule.classes(probabilities.unsqueeze(0)))

    def _bypass(self, kind: str, reason: str) -> None:
        self.bypassed = True
        self.controller.warn_fallback(kind, reason)


class HRAD(Controller):
    """The controller of an exported bundle (`predictors.bundle`)."""

    kind = "hrad"

    def __init__(self, bundle: Bundle) -> None:
        card = bundle.card
        if card["kind"] != self.kind:
            raise ValueError(f"{bundle.source} holds a {card['kind']!r} controller, not {self.kind!r}.")
        missing = [key for key in ("feature_spec", "calibration", "thresholds") if key not in card]
        if missing:
            raise ValueError(f"{bundle.source}: card.json lacks {', '.join(missing)}. {REMEDY}")
        where = f"{bundle.source}: card.json"
        self.spec = parse_config(FeatureSpec, card["feature_spec"], f"{where}: feature_spec")
        self.calibration = parse_config(Calibration, card["calibration"], f"{where}: calibration")
        self.thresholds = parse_config(HRADThresholds, card["thresholds"], f"{where}: thresholds")
        self.contract = bundle.contract
        self.layers = self.spec.layers
        self.gamma = self.spec.gamma
        if self.contract.identity.layer_ids != self.layers:
            raise ContractError(
                f"{where}: feature_spec.layers {self.layers} are not the contract's layer_ids "
                f"{self.contract.identity.layer_ids}. {REMEDY}"
            )
        self.network = build_network(self.spec, bundle.tensors, bundle.source)
        self._device = torch.device("cpu")
        self._warned: set[str] = set()

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "HRAD":
        return cls(read_bundle(parse_config(HRADConfig, values, "controller hrad").bundle))

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> "HRAD":
        return cls(bundle)

    def start(self, settings: SamplingSettings) -> HRADSession:
        return HRADSession(self, settings)

    def calibrated_for(self, settings: SamplingSettings) -> bool:
        """Whether ``settings`` are among those captured; warns once if not."""
        wanted = (settings.temperature, float(settings.top_k), settings.top_p)
        assert self.contract is not None
        known = self.contract.serving_range.settings
        if any(all(abs(a - b) < 1e-6 for a, b in zip(wanted, row, strict=True)) for row in known):
            return True
        self.warn_fallback(
            "settings",
            f"it is calibrated for (temperature, top_k, top_p) in {[tuple(row) for row in known]}, not for {wanted}",
        )
        return False

    @torch.inference_mode()
    def predict(self, root: Root, law: NextLaw | None) -> tuple[Tensor, float]:
        """Calibrated class probabilities [3] and the squared distance of the features from the training rows."""
        if root.hidden_KD is None or root.embedding_E is None:
            raise ValueError(
                "hrad needs target hidden states, and this decoder taps none. Build it with build_decoder."
            )
        state_S = state_vector(root.hidden_KD, root.embedding_E)
        previous = root.previous
        row = state_S.new_tensor([-1 if previous is None else previous.levels], dtype=torch.int64)
        accepted = state_S.new_tensor([0 if previous is None else previous.accepted], dtype=torch.int64)
        blank = state_S.new_zeros(1, dtype=torch.float32)
        confidence = blank if law is None else law.confidence.float().unsqueeze(0)
        entropy = blank if law is None else law.entropy.float().unsqueeze(0)
        features = assemble(self.spec, state_S.unsqueeze(0), row, accepted, confidence, entropy)
        if features.device != self._device:
            self.network, self._device = self.network.to(features.device), features.device
        reduced = self.network.reduction(features)
        probabilities = self.calibration.probabilities(self.network.head(reduced))
        return probabilities[0], float(squared_distance(reduced)[0])

    def warn_fallback(self, kind: str, reason: str) -> None:
        """Warn once per ``kind`` of reason that decoding goes on at the best static setting."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        warnings.warn(
            f"hrad is bypassed: {reason}. Decoding goes on at the best static gamma={self.thresholds.static_gamma}.",
            stacklevel=2,
        )
