"""A lookup takes over where its match is long, or promises enough; elsewhere another controller decides about the model's chain.

    tokens    n = min(found, length, factor · match)                without a factor: min(found, length)
    score     n · agreed / seen                                     Σ_i Π_{j<=i} f_j, f_1 = agreed / seen, all others taken as 1
    lookup    iff match >= least match and score >= least score     then ``tail`` tokens of the draft model after it

A match of 4 and no score is TensorRT-LLM's default for its suffix automaton (``SAEnhancerConfig``) and SAM-Decoding's rule (Hu et
al. 2024); a factor and a score are SuffixDecoding's in Arctic Inference (Oliaro et al. 2024), of whose frequencies f only the
first is known here. A match of 1 before a fixed chain is a static chain with a static lookup.

Known at the root: lossless.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np

from predictors.bundle import OTHERWISE, Bundle
from predictors.config import Checked, Count, NotNegative, Positive, Whole, parse_config
from predictors.controllers.base import Controller, Session, Sourced
from predictors.controllers.sourcing import SourcedSession, Sourcing, other_of
from predictors.lookup import Found
from predictors.sampling import SamplingSettings
from predictors.signals import Root

Numbers = TypeVar("Numbers", int, np.ndarray)


@dataclass(frozen=True)
class TakeoverConfig(Checked):
    """The least ``match`` and ``score``; at most ``length`` tokens, and ``factor`` times the match if given, then a ``tail`` of
    so many drawn ones. ``otherwise``: configuration of the controller that decides elsewhere."""

    match: Count = 4
    length: Count = 10
    tail: Whole = 0
    factor: Positive | None = None
    score: NotNegative = 0.0
    otherwise: Mapping[str, Any] = field(default_factory=lambda: {"kind": "fixed"})

    def tokens(self, match: Numbers, found: Numbers) -> Any:
        """How many of the ``found`` tokens to draft after a ``match``: of numbers or arrays."""
        most = np.minimum(found, self.length)
        return most if self.factor is None else np.minimum(most, np.floor(match * self.factor).astype(int))

    def takes_over(self, match: Numbers, tokens: Numbers, seen: Numbers, agreed: Numbers) -> Any:
        """Whether so many ``tokens`` replace the chain: of numbers or arrays."""
        return (match >= self.match) & (tokens > 0) & (tokens * agreed >= self.score * seen)


@dataclass(frozen=True)
class TakeoverSetting(Checked):
    """What a bundle does at captured sampling ``settings``: follow ``rule`` where it ``pays``, else look nothing up."""

    settings: SamplingSettings
    rule: TakeoverConfig
    pays: bool


class TakeoverSession(SourcedSession):
    """By ``config``; ``None``: the lookup never takes over."""

    def __init__(self, config: TakeoverConfig | None, inner: Session) -> None:
        super().__init__(inner)
        self.config = config

    @property
    def reads_lookup(self) -> bool:
        return self.config is not None or self.inner.reads_lookup

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        if self.config is None:
            return None
        tokens = int(self.config.tokens(found.length, len(found.tokens)))
        takes_over = self.config.takes_over(found.length, tokens, found.seen, found.agreed)
        return Sourced(tokens, self.config.tail) if takes_over else None


class Takeover(Sourcing):
    """By ``config``, or as an exported bundle says for captured sampling ``settings``; at others never."""

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

    def start(self, settings: SamplingSettings) -> SourcedSession:
        made: TakeoverSetting | None = self.setting(settings)
        rule = made.rule if made is not None and made.pays else self.config
        return TakeoverSession(rule, self.otherwise.start(settings))
