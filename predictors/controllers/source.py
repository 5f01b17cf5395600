"""Controller ``source``: whatever promises most this round, a lookup, a tail after it, or the chain of ``survival``.

Where something is found, `predictors.source_rule` weighs all sources by what they promise and what they cost. Elsewhere, and
where the chain is worth more, ``survival`` decides as it does alone. The source follows from the root: lossless. Where settings
or context were not captured, features lie far from those learned from or an answer is no number, ``survival`` decides, too.
"""

import math
from dataclasses import replace
from typing import Self

from predictors.bundle import OTHERWISE, Bundle
from predictors.controllers.base import Session, Sourced
from predictors.controllers.learned import Bundled, Guard
from predictors.controllers.survival import Survival, SurvivalSession
from predictors.controllers.takeover import SourcedSession, Sourcing, other_of
from predictors.latency.profile import LatencyProfile
from predictors.lookup import Found
from predictors.replay.prices import Prices
from predictors.sampling import SamplingSettings
from predictors.signals import Root
from predictors.source_rule import Seen, SourceSetting


class SourceSession(SourcedSession):
    """One request; its model is asked where something is found."""

    inner: SurvivalSession

    def __init__(self, controller: "Source", setting: SourceSetting, inner: SurvivalSession) -> None:
        super().__init__(inner)
        self._controller, self._setting = controller, setting
        self._asked, self._aside = 0, False  # this round

    def chosen(self, root: Root, found: Found) -> Sourced | None:
        controller, rule, inner = self._controller, self._setting.rule, self.inner
        self._aside = not controller.guard.reaches(root.position)
        self._asked = int(not self._aside)
        if self._aside:
            return None
        seen = Seen(found.length, len(found.tokens), found.seen, found.agreed, inner.rejected, inner.luck)
        made = rule.chosen(seen, inner.setting.rule.rate, inner.setting.costs)
        far = float(made.far)
        self._aside = not controller.guard.trusts(math.isfinite(far), far, rule.max_distance)
        if self._aside or not made.takes:
            return None
        return Sourced(int(made.tokens), rule.tails[int(made.tail)])

    def plan(self, root: Root) -> int | None:
        if root.found is None or not root.found.length:
            self._asked, self._aside = 0, False  # nobody was asked about a source
        return super().plan(root)

    @property
    def asked(self) -> int:  # type: ignore[override]
        return super().asked + self._asked

    @property
    def bypassed(self) -> bool:  # type: ignore[override]
        return super().bypassed or self._aside


class Source(Sourcing, Bundled):
    """The controller of an exported bundle of kind ``source``, which holds one of ``survival``."""

    kind = "source"
    otherwise: Survival

    def __init__(self, bundle: Bundle) -> None:
        bundle.require(self.kind, "settings", OTHERWISE)
        self.settings = bundle.parts(SourceSetting, "settings")
        Sourcing.__init__(self, other_of(bundle))
        self.guard = Guard(self.kind, bundle.contract, "the chain of survival")

    def at_latency(self, profile: LatencyProfile, reprice: bool) -> Self:
        changed = super().at_latency(profile, reprice)
        if reprice:
            context = self.otherwise.prices.context
            changed.settings = tuple(
                replace(made, rule=made.rule.at_prices(Prices(profile, not made.settings.greedy), context))
                for made in self.settings
            )
        return changed

    def start(self, settings: SamplingSettings) -> Session:
        made: SourceSetting | None = self.setting(settings)
        inner = self.otherwise.start(settings)
        return inner if made is None or not made.pays else SourceSession(self, made, inner)
