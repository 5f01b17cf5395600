"""What learned controllers share: they are made of an exported bundle, and a row of features has outputs without any decoding."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from predictors.bundle import Bundle, read_bundle
from predictors.config import parse_config
from predictors.controllers.base import Controller, Recorder, Rerun
from predictors.controllers.guard import Guard
from predictors.latency.profile import LatencyProfile
from predictors.sampling import SamplingSettings

LARGEST_FACTOR = 1.25  # between prices of two machines, that a bundle serves without a warning


@dataclass(frozen=True)
class BundleConfig:
    """``bundle``: folder of an exported controller."""

    bundle: str = ""

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ValueError(
                "no bundle is named, and a learned controller needs one: name the folder of an exported one."
            )


class LearnedController(Controller):
    """The controller of an exported bundle (`predictors.bundle`)."""

    config_class: ClassVar[type[Any]] = BundleConfig
    _recorder: Recorder | None = None
    _asked: tuple[torch.device, Rerun] | None = None  # where its network was asked the last time

    def __init__(self, bundle: Bundle) -> None:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Without what a process cannot give to another one, and would make again."""
        return {name: value for name, value in vars(self).items() if name not in ("_recorder", "_asked")}

    def record_with(self, recorder: Recorder) -> None:
        self._recorder, self._asked = recorder, None

    def said(self, features: Tensor) -> Tensor:
        """What the network says of raw ``features``, on the host: one read, wherever they are."""
        device = features.device
        if self._asked is None or self._asked[0] != device:
            recorder = self._recorder
            if recorder is not None and recorder.device != device:
                recorder = None  # another device's would miss all of it
            self._asked = device, Rerun(self.serve(device), recorder)
        return self._asked[1](features).cpu()

    def serve(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """The network on ``device`` as a function of raw features, all that is read of it in one row."""
        raise NotImplementedError

    @property
    def num_features(self) -> int:
        """Raw features of a decision."""
        raise NotImplementedError

    def outputs(self, features: Tensor) -> Tensor:
        """What the network says, a row of numbers for every row of raw features [B, num_features]."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        config = parse_config(cls.config_class, values, f"controller {cls.kind}")
        return cls(read_bundle(config.bundle)).under(config)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        return cls(bundle)

    def under(self, config: Any) -> Self:
        """The same model under the rules that a decoder's ``config`` asks for; by default the exported ones."""
        return self


@dataclass(frozen=True)
class RuledConfig(BundleConfig):
    """``asked``: follow the best rules that were tried, whether they pay or not."""

    asked: bool = False


class RuledController(LearnedController):
    """One that has a rule for every captured sampling setting, or none where none pays.

    Of its bundle's card: ``settings``, each a `setting_class`; the ``prices`` that rules were chosen by, a `prices_class`; and
    ``max_distance``, the largest squared distance of trusted features. Where it stands aside, decoding goes on at ``instead``.
    """

    config_class = RuledConfig
    setting_class: ClassVar[type[Any]]
    prices_class: ClassVar[type[Any]]
    instead: ClassVar[str] = "the best static length of the nearest captured settings"
    settings: tuple[Any, ...]
    prices: Any

    def __init__(self, bundle: Bundle, *keys: str) -> None:
        """``keys``: what the card must hold besides."""
        bundle.require(self.kind, *keys, "settings", "max_distance", "prices")
        self.settings = bundle.parts(self.setting_class, "settings")
        self.max_distance = float(bundle.card["max_distance"])
        self.prices = bundle.part(self.prices_class, "prices")
        self.contract = bundle.contract
        self.guard = Guard(self.kind, self.contract, self.instead)

    def under(self, config: Any) -> Self:
        return self.asked_anyway() if config.asked else self

    def with_settings(self, settings: Iterable[Any]) -> Self:
        """The same model under other rules."""
        changed = copy.copy(self)
        changed.settings = tuple(settings)
        changed._tap()
        return changed

    def asked_anyway(self) -> Self:
        """The same model under the best rules that were tried, whether they pay or not."""
        raise NotImplementedError

    def _tap(self) -> None:
        """Take note of the hidden states that are read under these settings, if any are."""

    def setting(self, settings: SamplingSettings) -> Any:
        """What is done at ``settings``, or at the captured ones nearest to them."""
        return min(self.settings, key=lambda made: made.settings.distance(settings))

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> Self:
        if reprice:
            raise ValueError(
                f"the rules of {self.kind} follow from traces and latencies together, and a bundle has no traces: reprice is not "
                "possible. Export the bundle here (dvc repro)."
            )
        return self
