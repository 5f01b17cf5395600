"""Controllers by name. Adding one is one class and one entry here; it then appears in benchmark and contract tests."""

from collections.abc import Mapping
from typing import Any

from predictors.bundle import OTHERWISE, Bundle
from predictors.config import ByName
from predictors.controllers.base import Controller
from predictors.controllers.base import Session as Session

UNLEARNED = {
    "fixed": "unlearned.Fixed",
    "confidence": "unlearned.Confidence",
    "entropy": "unlearned.Entropy",
    "roc": "unlearned.ROC",
    "ema": "unlearned.EMA",
    "cumulative": "grow.Cumulative",
    "online": "unlearned.Online",
    "takeover": "takeover.Takeover",
}
LEARNED = {
    "logistic": "early_stop.Logistic",
    "specdecpp": "early_stop.SpecDecPP",
    "early_stop": "early_stop.EarlyStop",
    "survival": "survival.Survival",
    "grow": "grow.Grow",
    "source": "source.SourceController",
    "hrad": "head.HRAD",
    "length": "head.Length",
    "delayed_tree": "delayed_tree.DelayedTree",
}


CONTROLLERS = ByName(__name__, UNLEARNED | LEARNED)
NETWORKS = [kind for kind in LEARNED if kind != "source"]  # of which a bundle holds a network


def build_controller(values: Mapping[str, Any]) -> Controller:
    """Build from a configuration such as ``{"kind": "entropy", "kappa": 0.2}``."""
    options = dict(values)
    kind = options.pop("kind", None)
    if kind not in [*CONTROLLERS]:
        raise ValueError(f"controller: unknown kind {kind!r}. Known kinds: {', '.join(CONTROLLERS)}.")
    made: Controller = CONTROLLERS[kind].from_config(options)
    return made


def is_learned(bundle: Bundle) -> bool:
    """Tell whether the bundle holds a network, not settings alone."""
    return _innermost(bundle).card["kind"] in NETWORKS


def learned_controller(bundle: Bundle) -> Any:
    """Load the controller that an exported bundle holds, or the one inside that has a network."""
    inner = _innermost(bundle)
    kind = inner.card["kind"]
    if kind not in NETWORKS:
        raise ValueError(f"{inner.source}: unknown controller kind {kind!r}. Learned kinds: {', '.join(NETWORKS)}.")
    return CONTROLLERS[kind](inner)


def _innermost(bundle: Bundle) -> Bundle:
    return _innermost(bundle.otherwise) if OTHERWISE in bundle.card else bundle
