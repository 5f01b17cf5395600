"""A lookup takes over where its match is long, or promises enough; elsewhere another controller decides about the model's chain.

    tokens    n = min(found, length, factor · match)                without a factor: min(found, length)
    score     n · agreed / seen                                     Σ_i Π_{j<=i} f_j, f_1 = agreed / seen, all others taken as 1
    lookup    iff match >= least match and score >= least score     then ``tail`` tokens of the draft model after it

A match of 4 and no score is TensorRT-LLM's default for its suffix automaton (``SAEnhancerConfig``) and SAM-Decoding's rule (Hu et
al. 2024); a factor and a score are SuffixDecoding's in Arctic Inference (Oliaro et al. 2024), of whose frequencies f only the
first is known here. A match of 1 before a fixed chain is a static chain with a static lookup.

Known at the root: lossless. The other controller learns of its own rounds only: a lookup's outcome tells nothing about a
chain. In a bundle its whole card stands under `predictors.bundle.OTHERWISE`, and the tensors are its.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from predictors.bundle import OTHERWISE, Bundle
from predictors.config import Checked, Count, NotNegative, Positive, Whole, parse_config
from predictors.controllers.base import Controller, GraphMaker, Session, Sourced
from predictors.latency.profile import LatencyProfile
from predictors.lookup import Found
from predictors.rounds import Forecast, RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import Root

Numbers = TypeVar("Numbers", int, np.ndarray)
PASSED_ON = ("layers", "draft_layers", "actions", "reads_views", "follows_one_draft", "horizon", "verifier", "contract")


class SourcedSession(Session):
    """Decisions of a lookup in front of another controller, whose session is ``inner``. A subclass decides which acts."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner
        for hook in ("tree", "stop_before", "stops_before", "stop_after", "widths", "beside", "branch_count"):
            setattr(self, hook, getattr(inner, hook))
        self._looks_up = False  # this round
        self._previous: RoundRecord | None = None  # of the other controller's rounds the last

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        """Choose how much to draft of what was ``found`` at ``root``; ``None``: the other controller decides."""
        raise NotImplementedError

    def source(self, root: Root) -> Sourced | None:
        assert root.found is not None, "asked where something was found"
        made = self.chosen(root, root.found)
        self._looks_up = made is not None
        return self.inner.source(self._own(root)) if made is None else made

    def plan(self, root: Root) -> int | None:
        self._looks_up = False
        return self.inner.plan(self._own(root))

    def end_round(self, outcome: RoundRecord) -> None:
        if not self._looks_up:
            self._previous = outcome
            self.inner.end_round(outcome)

    def _own(self, root: Root) -> Root:
        return root if root.previous is self._previous else replace(root, previous=self._previous)

    @property
    def stops(self) -> bool:
        return self.inner.stops

    @property
    def bypassed(self) -> bool:  # type: ignore[override]
        return not self._looks_up and self.inner.bypassed

    @property
    def asked(self) -> int:  # type: ignore[override]
        return 0 if self._looks_up else self.inner.asked

    @property
    def forecasts(self) -> Sequence[Forecast]:  # type: ignore[override]
        return () if self._looks_up else self.inner.forecasts


class Sourcing(Controller):
    """A lookup in front of controller ``otherwise``. A subclass decides when it takes over, a bundle's by ``settings``."""

    settings: Sequence[Any] = ()

    def __init__(self, otherwise: Controller) -> None:
        self.otherwise = otherwise
        for name in PASSED_ON:
            setattr(self, name, getattr(otherwise, name))

    def with_otherwise(self, otherwise: Controller) -> Self:
        """Put the same rule in front of another controller."""
        changed = copy.copy(self)
        Sourcing.__init__(changed, otherwise)
        return changed

    def with_epsilon(self, epsilon: float) -> Self:
        return self.with_otherwise(self.otherwise.with_epsilon(epsilon))

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> Self:
        return self.with_otherwise(self.otherwise.at_latency(profile, reprice))

    def setting(self, settings: SamplingSettings) -> Any:
        """Return what was exported for these sampling ``settings``; ``None`` for others."""
        return next((made for made in self.settings if made.settings == settings), None)

    def question_seconds(self, profile: LatencyProfile) -> float:
        return self.otherwise.question_seconds(profile)

    def graph_with(self, maker: GraphMaker) -> None:
        self.otherwise.graph_with(maker)


def other_of(bundle: Bundle) -> Controller:
    """Load the controller whose card a bundle holds."""
    from predictors.controllers import CONTROLLERS

    inner = bundle.otherwise
    return CONTROLLERS[inner.card["kind"]].from_bundle(inner)


@dataclass(frozen=True)
class TakeoverConfig(Checked):
    """Configuration of ``takeover``: the least ``match`` and ``score``; at most ``length`` tokens, and ``factor`` times the
    match if given, then a ``tail`` of drawn ones. ``otherwise``: configuration of the controller that decides elsewhere."""

    match: Count = 4
    length: Count = 10
    tail: Whole = 0
    factor: Positive | None = None
    score: NotNegative = 0.0
    otherwise: Mapping[str, Any] = field(default_factory=lambda: {"kind": "fixed"})

    def tokens(self, match: Numbers, found: Numbers) -> Any:
        """Choose how many of the ``found`` tokens to draft after a ``match``: of numbers or arrays."""
        most = np.minimum(found, self.length)
        return most if self.factor is None else np.minimum(most, np.floor(match * self.factor).astype(int))

    def takes_over(self, match: Numbers, tokens: Numbers, seen: Numbers, agreed: Numbers) -> Any:
        """Tell whether so many ``tokens`` replace the chain: of numbers or arrays."""
        return (match >= self.match) & (tokens > 0) & (tokens * agreed >= self.score * seen)


@dataclass(frozen=True)
class TakeoverSetting(Checked):
    """Rule at captured sampling ``settings``: follow ``rule`` where it ``pays``, else look nothing up."""

    settings: SamplingSettings
    rule: TakeoverConfig
    pays: bool


class TakeoverSession(SourcedSession):
    def __init__(self, config: TakeoverConfig, inner: Session) -> None:
        super().__init__(inner)
        self.config = config

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        tokens = int(self.config.tokens(found.length, len(found.tokens)))
        takes_over = self.config.takes_over(found.length, tokens, found.seen, found.agreed)
        return Sourced(tokens, self.config.tail) if takes_over else None


class Takeover(Sourcing):
    """Drafts a long match instead of the chain: by ``config``, or, of a bundle, by its rule for captured ``settings`` alone."""

    kind = "takeover"

    def __init__(
        self, config: TakeoverConfig | None, otherwise: Controller, settings: tuple[TakeoverSetting, ...] = ()
    ) -> None:
        super().__init__(otherwise)
        self.config, self.settings = config, settings

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Self:
        from predictors.controllers import build_controller  # which knows this class

        config = parse_config(TakeoverConfig, values, f"controller {cls.kind}")
        return cls(config, build_controller(config.otherwise))

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        if OTHERWISE not in bundle.card:
            return super().from_bundle(bundle)
        bundle.require(cls.kind, "settings")
        return cls(None, other_of(bundle), bundle.parts(TakeoverSetting, "settings"))

    def start(self, settings: SamplingSettings) -> Session:
        made: TakeoverSetting | None = self.setting(settings)
        rule, inner = made.rule if made is not None and made.pays else self.config, self.otherwise.start(settings)
        return inner if rule is None else TakeoverSession(rule, inner)
