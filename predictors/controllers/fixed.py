"""Draft a fixed number of tokens: the static baseline every controller is measured against."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictors.config import parse_config
from predictors.controllers.base import Controller, Session
from predictors.sampling import SamplingSettings
from predictors.signals import Root


@dataclass(frozen=True)
class FixedConfig:
    """``gamma``: tokens per round; ``None`` is the drafter's own."""

    gamma: int | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.gamma < 0:
            raise ValueError(f"gamma must be >= 0, got {self.gamma}.")


class FixedSession(Session):
    def __init__(self, gamma: int | None) -> None:
        self.gamma = gamma

    def plan(self, root: Root) -> int | None:
        return self.gamma


class Fixed(Controller):
    kind = "fixed"

    def __init__(self, config: FixedConfig) -> None:
        self.config = config

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "Fixed":
        return cls(parse_config(FixedConfig, values, "controller fixed"))

    def start(self, settings: SamplingSettings) -> FixedSession:
        return FixedSession(self.config.gamma)
