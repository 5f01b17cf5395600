"""Base of learned controllers: they are made of an exported bundle, and know when they are not to be trusted.

Where sampling settings or a context were not captured, features lie far from the training rows or an output is no number, a round
is *bypassed*: decoding goes on at the best static setting, with one warning per kind of reason.
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from predictors.bundle import Bundle, CaptureContract, read_bundle
from predictors.config import parse_config
from predictors.controllers.base import Controller, GraphMaker, Rerun, Session
from predictors.latency.profile import LatencyProfile
from predictors.network import Judging
from predictors.rounds import Forecast
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from predictors.survival import RatioPrices

LARGEST_FACTOR = 1.25  # between prices of two machines, that a bundle serves without a warning


@dataclass(frozen=True)
class BundleConfig:
    """Configuration of a learned controller: ``bundle`` is the folder of an exported one."""

    bundle: str = ""

    def __post_init__(self) -> None:
        if not self.bundle:
            raise ValueError(
                "no bundle is named, and a learned controller needs one: name the folder of an exported one."
            )


def ratio_doubt(kind: str, made_at: RatioPrices, profile: LatencyProfile, remedy: str) -> str | None:
    """Tell why rules of ``kind`` that were ``made_at`` other prices may not pay at those of ``profile``; ``None``: they may."""
    made, here = made_at.cost_ratio, profile.cost_ratio(made_at.context)
    if max(here / made, made / here) <= LARGEST_FACTOR:
        return None
    return (
        f"the rules of {kind} were chosen where a target pass takes {made:.1f} draft steps, and here it takes {here:.1f}. "
        f"{remedy}"
    )


class Guard:
    """Keeps a controller of ``kind`` to what its features were captured under; ``instead`` names how decoding goes on."""

    def __init__(self, kind: str, contract: CaptureContract, instead: str) -> None:
        self._kind = kind
        self._range = contract.serving_range
        self._instead = instead
        self._warned: set[str] = set()

    def covers(self, settings: SamplingSettings) -> bool:
        """Tell whether ``settings`` are among those captured; warn if not."""
        wanted, known = settings.numbers, self._range.settings
        for row in (row for row in known if len(row) == len(wanted)):
            if all(abs(a - b) < 1e-6 for a, b in zip(wanted, row, strict=True)):
                return True
        rows, other = [tuple(row) for row in known], "invariant sampling at " * settings.invariant
        self._warn("settings", f"it is calibrated for (temperature, top_k, top_p) in {rows}, not for {other}{wanted}")
        return False

    def reaches(self, position: int) -> bool:
        """Tell whether a context of ``position`` tokens is neither shorter nor longer than any captured one; warn if not."""
        shortest, longest = self._range.min_context, self._range.max_context
        if shortest <= position <= longest:
            return True
        self._warn("context", f"a context of {position} tokens lies outside the captured {shortest} to {longest}")
        return False

    def trusts(self, finite: bool, distance: float, limit: float) -> bool:
        """Tell whether a model's output is ``finite`` and its features are within ``limit`` of the training rows; warn if not."""
        if not finite:
            self._warn("not finite", "its head returned a value that is not finite")
        elif distance > limit:
            far = f"the features lie at squared distance {distance:.1f} from the training rows"
            self._warn("distance", f"{far}, beyond the calibrated {limit:.1f}")
        return finite and distance <= limit

    def _warn(self, kind: str, reason: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self._kind} is bypassed: {reason}. Decoding goes on at {self._instead}.", stacklevel=3)


class LearnedSession(Session):
    """Decisions of a learned ``controller`` within one request, by the nearest ``setting``. ``asks``: its model may run."""

    def __init__(self, controller: Any, settings: SamplingSettings, asks: bool = True) -> None:
        self.controller, self.setting = controller, controller.setting(settings)
        self.uncalibrated = asks and not controller.guard.covers(settings)
        self.forecasts: list[Forecast] = []

    def begin(self, root: Root, asks: bool) -> None:
        """Begin a round, which is bypassed if the model would be run in it and nothing like it was captured."""
        self.asked, self.forecasts = 0, []
        self.bypassed = asks and (self.uncalibrated or not self.controller.guard.reaches(root.position))

    def heard(self, forecast: Forecast, finite: bool) -> None:
        """Take the model's ``forecast`` into account; one that is not to be trusted leaves the round to the static setting."""
        self.asked += 1
        if finite:
            self.forecasts.append(forecast)
        if not finite or not forecast.distance <= self.controller.max_distance:
            self.bypassed |= not self.controller.guard.trusts(finite, forecast.distance, self.controller.max_distance)


class Bundled(Controller):
    """A controller that is made of an exported bundle (`predictors.bundle`)."""

    config_class: ClassVar[type[Any]] = BundleConfig

    def __init__(self, bundle: Bundle) -> None:
        raise NotImplementedError

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        config = parse_config(cls.config_class, values, f"controller {cls.kind}")
        return cls(read_bundle(config.bundle)).under(config)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        return cls(bundle)

    def under(self, config: Any) -> Self:
        """Apply the rules that a decoder's ``config`` sets to the same model; by default the exported ones."""
        return self


class LearnedController(Bundled):
    """A controller with a network. Where the network is not run, decoding goes on at ``instead``."""

    instead: ClassVar[str] = "the best static length of the nearest captured settings"
    network: Judging
    _maker: GraphMaker | None = None
    _asked: tuple[torch.device, Rerun] | None = None  # where its network was run the last time

    def __init__(self, bundle: Bundle, *keys: str) -> None:
        """Read a bundle; ``keys``: what its card must hold."""
        bundle.require(self.kind, *keys)
        self.contract: CaptureContract = bundle.contract
        self.guard = Guard(self.kind, self.contract, self.instead)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a process cannot give to another one, and would make again."""
        return {name: value for name, value in vars(self).items() if name not in ("_maker", "_asked")}

    def graph_with(self, maker: GraphMaker) -> None:
        self._maker, self._asked = maker, None

    def said(self, features: Tensor) -> Tensor:
        """Run the network on raw ``features`` [B, F] by `Judging.served`; on the host: one read, wherever they are."""
        device = features.device
        if self._asked is None or self._asked[0] != device:
            maker = self._maker
            if maker is not None and maker.device != device:
                maker = None  # another device's would miss all of it
            self._asked = device, Rerun(copy.deepcopy(self.network).to(device).served, maker)
        return self._asked[1](features).cpu()

    @property
    def num_features(self) -> int:
        """Number of raw features of a decision."""
        raise NotImplementedError

    def outputs(self, features: Tensor) -> Tensor:
        """Compute the network's outputs, a row for every row of raw features [B, num_features]; needs no decoding."""
        raise NotImplementedError


@dataclass(frozen=True)
class RuledConfig(BundleConfig):
    """Configuration of a learned controller with rules; ``asked``: follow the best rules tried, whether they pay or not."""

    asked: bool = False


class RuledController(LearnedController):
    """A controller that has a rule for every captured sampling setting, or none where none pays.

    Of its bundle's card: ``settings``, each a `setting_class`; the ``prices`` that rules were chosen by, a `prices_class`; and
    ``max_distance``, the largest squared distance of trusted features. A kind that reads ``scalars`` has them in its card, too.
    """

    config_class = RuledConfig
    setting_class: ClassVar[type[Any]]
    prices_class: ClassVar[type[Any]]
    scalars: ClassVar[tuple[str, ...]] = ()
    settings: tuple[Any, ...]
    prices: Any

    def __init__(self, bundle: Bundle, *keys: str) -> None:
        super().__init__(bundle, *keys, "settings", "max_distance", "prices", *["scalars"] * bool(self.scalars))
        if self.scalars and tuple(bundle.card["scalars"]) != self.scalars:
            reads = ", ".join(self.scalars)
            raise ValueError(
                f"{bundle.source}: card.json: scalars are not this version's, which reads {reads}. Fit it again."
            )
        self.settings = bundle.parts(self.setting_class, "settings")
        self.max_distance = float(bundle.card["max_distance"])
        self.prices = bundle.part(self.prices_class, "prices")

    def under(self, config: Any) -> Self:
        return self.asked_anyway() if config.asked else self

    def with_settings(self, settings: Iterable[Any]) -> Self:
        """Put the same model under other rules."""
        changed = copy.copy(self)
        changed.settings = tuple(settings)
        changed._tap()
        return changed

    def asked_anyway(self) -> Self:
        """Put the same model under the best rules that were tried, whether they pay or not."""
        return self.with_settings(replace(made, pays=True) for made in self.settings)

    @property
    def asks(self) -> bool:
        """True if the model is run at any captured setting."""
        return any(made.pays for made in self.settings)

    def _tap(self) -> None:
        """Note the hidden states that are read under these settings, if any are."""

    def setting(self, settings: SamplingSettings) -> Any:
        """Return the setting captured for ``settings``, or for the ones nearest to them."""
        return min(self.settings, key=lambda made: made.settings.distance(settings))

    def repriced(self, profile: LatencyProfile) -> Self:
        raise ValueError(
            f"the rules of {self.kind} follow from traces and latencies together, and a bundle has no traces: reprice is not "
            "possible. Export the bundle here (dvc repro)."
        )
