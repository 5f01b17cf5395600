"""Controllers by name. Adding one is one class and one entry here; it then appears in benchmark and contract tests."""

from collections.abc import Mapping
from typing import Any

from predictors.controllers.base import Controller, Session
from predictors.controllers.confidence import Confidence
from predictors.controllers.entropy import Entropy
from predictors.controllers.fixed import Fixed
from predictors.controllers.hrad import HRAD

CONTROLLERS: dict[str, type[Controller]] = {cls.kind: cls for cls in (Fixed, Confidence, Entropy, HRAD)}


def build_controller(values: Mapping[str, Any]) -> Controller:
    """Build from a configuration such as ``{"kind": "entropy", "kappa": 0.2}``."""
    options = dict(values)
    kind = options.pop("kind", None)
    if kind not in CONTROLLERS:
        raise ValueError(f"controller: unknown kind {kind!r}. Known kinds: {', '.join(CONTROLLERS)}.")
    return CONTROLLERS[kind].from_config(options)


__all__ = ["CONTROLLERS", "Controller", "Session", "build_controller"]
