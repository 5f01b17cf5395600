"""Draft a fixed number of tokens: the static baseline every controller is measured against."""

import warnings
from dataclasses import dataclass
from typing import Self

from predictors.bundle import Bundle
from predictors.config import Checked, Whole
from predictors.controllers.base import Configured, Session
from predictors.latency.profile import LatencyProfile
from predictors.signals import Root


@dataclass(frozen=True)
class FixedConfig(Checked):
    """``gamma``: tokens per round; ``None`` is the drafter's own."""

    gamma: Whole | None = None


class FixedSession(Session):
    def __init__(self, config: FixedConfig) -> None:
        self.gamma = config.gamma

    def plan(self, root: Root) -> int | None:
        return self.gamma


class Fixed(Configured):
    kind = "fixed"
    config_class, session_class = FixedConfig, FixedSession
    profile_hash: str | None = None  # of the latency profile by which an exported bundle's settings were chosen

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        controller = super().from_bundle(bundle)
        controller.profile_hash = bundle.card.get("lineage", {}).get("profile_hash")
        return controller

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> "Fixed":
        """Settings alone cannot be chosen anew: the traces that they were chosen from are not in the bundle."""
        if reprice:
            raise ValueError(
                "these settings were chosen by a latency profile when they were exported. Run the stage that exports them again."
            )
        if self.profile_hash not in (None, profile.profile_hash):
            warnings.warn(
                "these settings were chosen by another latency profile: on this machine others may be faster (dvc repro).",
                stacklevel=3,
            )
        return self
