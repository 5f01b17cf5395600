"""What controllers share that let a lookup take over from another controller, which decides everywhere else.

The other one is told of its own rounds only: what a lookup came to says nothing of a chain. In a bundle its whole card stands
under `predictors.bundle.OTHERWISE`, and the tensors are its.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from torch import Tensor

from predictors.actions import Action
from predictors.bundle import Bundle
from predictors.controllers.base import Controller, Recorder, Session, Sourced
from predictors.latency.profile import LatencyProfile
from predictors.lookup import Found
from predictors.rounds import Forecast, RoundRecord
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root, TreeRoot

PASSED_ON = ("layers", "draft_layers", "actions", "reads_views", "follows_one_draft", "gamma", "verifier", "contract")


class SourcedSession(Session):
    """``inner``: the other controller's session. A subclass says when the lookup takes over."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner
        self._looks_up = False  # this round
        self._previous: RoundRecord | None = None  # of the other controller's rounds the last

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        """What to draft of what was ``found`` at ``root``; ``None``: the other controller decides."""
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

    def tree(self, root: TreeRoot) -> Action:
        return self.inner.tree(root)

    def stop_before(self, law: NextLaw) -> bool | Tensor:
        return self.inner.stop_before(law)

    def stops_before(self, laws: Sequence[NextLaw]) -> list[bool]:
        return self.inner.stops_before(laws)

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        return self.inner.stop_after(drawn)

    def branch_count(self, law: NextLaw) -> int | None:
        return self.inner.branch_count(law)


class Sourcing(Controller):
    """``otherwise`` decides where no lookup takes over. A subclass says when one does; of an exported bundle by ``settings``."""

    settings: Sequence[Any] = ()

    def __init__(self, otherwise: Controller) -> None:
        self.otherwise = otherwise
        for name in PASSED_ON:
            setattr(self, name, getattr(otherwise, name))

    def with_otherwise(self, otherwise: Controller) -> Self:
        """The same rule before another controller."""
        changed = copy.copy(self)
        Sourcing.__init__(changed, otherwise)
        return changed

    def with_epsilon(self, epsilon: float) -> Self:
        return self.with_otherwise(self.otherwise.with_epsilon(epsilon))

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> Self:
        return self.with_otherwise(self.otherwise.at_latency(profile, reprice))

    def setting(self, settings: SamplingSettings) -> Any:
        """What was exported for these sampling ``settings``; ``None`` for others."""
        return next((made for made in self.settings if made.settings == settings), None)

    def question_seconds(self, profile: LatencyProfile) -> float:
        return self.otherwise.question_seconds(profile)

    def record_with(self, recorder: Recorder) -> None:
        self.otherwise.record_with(recorder)


def other_of(bundle: Bundle) -> Controller:
    """The controller whose card a bundle holds."""
    from predictors.controllers import CONTROLLERS

    inner = bundle.otherwise
    return CONTROLLERS[inner.card["kind"]].from_bundle(inner)
