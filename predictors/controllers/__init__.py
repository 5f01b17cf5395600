"""Controllers by name. Adding one is one class and one entry here; it then appears in benchmark and contract tests."""

from collections.abc import Mapping
from typing import Any

from predictors.bundle import OTHERWISE, Bundle
from predictors.controllers.base import Controller
from predictors.controllers.base import Session as Session
from predictors.controllers.delayed_tree import DelayedTree
from predictors.controllers.early_stop import EarlyStop, Logistic, SpecDecPP
from predictors.controllers.head import HRAD, Length
from predictors.controllers.learned import LearnedController
from predictors.controllers.source import Source
from predictors.controllers.survival import Survival
from predictors.controllers.takeover import Takeover
from predictors.controllers.unlearned import EMA, ROC, Confidence, Entropy, Fixed

UNLEARNED: tuple[type[Controller], ...] = (Fixed, Confidence, Entropy, ROC, EMA, Takeover)
LEARNED: tuple[type[Controller], ...] = (Logistic, SpecDecPP, EarlyStop, Survival, Source, HRAD, Length, DelayedTree)
CONTROLLERS = {cls.kind: cls for cls in (*UNLEARNED, *LEARNED)}
NETWORKS = {kind: cls for kind, cls in CONTROLLERS.items() if issubclass(cls, LearnedController)}


def build_controller(values: Mapping[str, Any]) -> Controller:
    """Build from a configuration such as ``{"kind": "entropy", "kappa": 0.2}``."""
    options = dict(values)
    kind = options.pop("kind", None)
    if kind not in [*CONTROLLERS]:
        raise ValueError(f"controller: unknown kind {kind!r}. Known kinds: {', '.join(CONTROLLERS)}.")
    return CONTROLLERS[kind].from_config(options)


def is_learned(bundle: Bundle) -> bool:
    """Whether the bundle holds a network, not settings alone."""
    return _innermost(bundle).card["kind"] in NETWORKS


def learned_controller(bundle: Bundle) -> LearnedController:
    """The controller that an exported bundle holds, or the one inside that has a network."""
    inner = _innermost(bundle)
    kind = inner.card["kind"]
    if kind not in NETWORKS:
        raise ValueError(f"{inner.source}: unknown controller kind {kind!r}. Learned kinds: {', '.join(NETWORKS)}.")
    return NETWORKS[kind](inner)


def _innermost(bundle: Bundle) -> Bundle:
    return _innermost(bundle.otherwise) if OTHERWISE in bundle.card else bundle
