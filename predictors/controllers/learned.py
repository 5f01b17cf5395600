"""What learned controllers share: an exported head over one feature set, and when to stand aside.

The ``paper`` feature set is known at the root and decides before drafting; the ``extended`` set reads the first draft law and
decides before its token is drawn. Both are lossless. What to retain of a branch that survived has thresholds of its own: its
tokens are drafted already. Where the head has no calibration, meets states far from its training
rows or returns NaN, the round is decoded at the best static γ, with one warning per kind of reason.

Shape suffixes: L classes of the head, S state size.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from predictors.bundle import REMEDY, Bundle, read_bundle
from predictors.calibration import Calibration
from predictors.config import parse_config
from predictors.contract import ContractError
from predictors.controllers.base import Controller, Session
from predictors.decision_rule import Thresholds
from predictors.features import FeatureSpec, scalar_features, state_vector
from predictors.network import ServedHead, build_network
from predictors.sampling import SamplingSettings
from predictors.signals import NextLaw, Root

Learned = TypeVar("Learned", bound="LearnedController")


@dataclass(frozen=True)
class BundleConfig:
    """``bundle``: folder of an exported controller."""

    bundle: str = ""

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ValueError(
                "no bundle is named, and a learned controller needs one: name the folder of an exported one."
            )


class LearnedSession(Session):
    """One request: bypassed rounds draft the best static γ, all others what a subclass makes of the head's ``decision``."""

    def __init__(self, controller: "LearnedController", settings: SamplingSettings) -> None:
        self.controller = controller
        self.spec = controller.spec
        self.decision: int | None = None
        self.retains = False  # decides on a branch that survived
        self.uncalibrated = not controller.calibrated_for(settings)
        self.bypassed = False

    def plan(self, root: Root) -> int | None:
        self.retains = root.previous is not None and not root.previous.ends_segment
        self.decision = self.controller.settled(self.retains)
        self.bypassed = self.uncalibrated or self._outside(root.position)
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

    def _decide(self, root: Root, law: NextLaw | None) -> int | None:
        """The head's decision; ``None``, and the round is bypassed, where it cannot be trusted."""
        probabilities_L, distance = self.controller.predict(root, law)
        limit = self.controller.thresholds.max_distance
        if not bool(torch.isfinite(probabilities_L).all()):
            self._bypass("not finite", "its head returned a value that is not finite")
        elif distance > limit:
            far = f"the features lie at squared distance {distance:.1f} from the training rows"
            self._bypass("distance", f"{far}, beyond the calibrated {limit:.1f}")
        return None if self.bypassed else self.controller.decide(probabilities_L, self.retains)

    def _bypass(self, kind: str, reason: str) -> None:
        self.bypassed = True
        self.controller.warn_fallback(kind, reason)


class LearnedController(Controller):
    """The controller of an exported bundle (`predictors.bundle`). Subclasses say what the head's classes mean."""

    thresholds_class: ClassVar[type[Thresholds]]

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
        self.thresholds = parse_config(self.thresholds_class, card["thresholds"], f"{where}: thresholds")
        self.contract = bundle.contract
        self.layers = self.spec.layers
        self.gamma = self.spec.gamma
        if self.contract.identity.layer_ids != self.layers:
            raise ContractError(
                f"{where}: feature_spec.layers {self.layers} are not the contract's layer_ids "
                f"{self.contract.identity.layer_ids}. {REMEDY}"
            )
        self.network = build_network(self.spec, bundle.tensors, bundle.source)
        for what, count in (("the head", self.network.num_classes), ("calibration.bias", len(self.calibration.bias))):
            if count != self.num_classes:
                raise ValueError(
                    f"{where}: {self.kind} at gamma={self.gamma} has {self.num_classes} classes, but {what} has {count}. "
                    f"{REMEDY}"
                )
        self._device = torch.device("cpu")
        self._served = ServedHead(self.network, self._device)
        self._warned: set[str] = set()

    @property
    def num_classes(self) -> int:
        """Classes of the head."""
        raise NotImplementedError

    def settled(self, retains: bool) -> int | None:
        """The decision that is the calibrated rule's whatever the head says, which is not asked then; ``None``: it depends."""
        return None

    def decide(self, probabilities_L: Tensor, retains: bool) -> int:
        """The decision of the calibrated rule for drafting, or for what is retained of a branch."""
        raise NotImplementedError

    @classmethod
    def from_config(cls: type[Learned], values: Mapping[str, Any]) -> Learned:
        return cls(read_bundle(parse_config(BundleConfig, values, f"controller {cls.kind}").bundle))

    @classmethod
    def from_bundle(cls: type[Learned], bundle: Bundle) -> Learned:
        return cls(bundle)

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
        """Calibrated class probabilities [L] and the squared distance of the features from the training rows."""
        if root.hidden_KD is None or root.embedding_E is None:
            raise ValueError(
                f"{self.kind} needs target hidden states, and this decoder taps none. Build it with build_decoder."
            )
        features = self.features(root, law)
        if features.device != self._device:
            self._served, self._device = ServedHead(self.network, features.device), features.device
        logits, distance = self._served(features)
        return self.calibration.probabilities(logits)[0], float(distance)

    def features(self, root: Root, law: NextLaw | None) -> Tensor:
        """Raw features [1, S + C] of a round (`predictors.features`)."""
        assert root.hidden_KD is not None and root.embedding_E is not None
        state_S = state_vector(root.hidden_KD, root.embedding_E)
        previous = root.previous
        drafted, accepted = (-1, 0) if previous is None else (previous.submitted, previous.accepted_in_sequence)
        confidence, entropy = (0.0, 0.0) if law is None else (float(law.confidence), float(law.entropy))
        scalars = scalar_features(self.spec, drafted, accepted, confidence, entropy)
        return torch.cat([state_S.float(), torch.tensor(scalars, device=state_S.device)]).unsqueeze(0)

    def warn_fallback(self, kind: str, reason: str) -> None:
        """Warn once per ``kind`` of reason that decoding goes on at the best static setting."""
        if kind in self._warned:
            return
        self._warned.add(kind)
        static, retained = (self.thresholds.static(retains) for retains in (False, True))
        branches = f", keeping at most {retained} tokens of a branch" if retained != static else ""
        warnings.warn(
            f"{self.kind} is bypassed: {reason}. Decoding goes on at the best static gamma={static}{branches}.",
            stacklevel=2,
        )
