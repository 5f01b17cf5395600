"""Controller ``grow``: how long a chain, and which leaves beside it, by value for their price.

Where tokens are read off (temperature 0, invariant sampling) everything may be looked at: after every token the controller reads
the level's likeliest candidates, predicts which of them is right (`predictors.grow`), and drafts on while that pays; then it
submits what pays. What a lookup found goes in beside the chain, as far as it pays, or instead of it. Elsewhere a coin decides
about every token, and it drafts a static chain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from predictors.bundle import Bundle
from predictors.config import Count
from predictors.controllers.base import Sourced
from predictors.controllers.learned import LearnedSession, RuledController, ratio_doubt
from predictors.controllers.source import Seen, lookup_survival
from predictors.controllers.unlearned import Configured
from predictors.grow import (
    CANDIDATES,
    GAMMA,
    SCALARS,
    Growing,
    GrowNetwork,
    GrowSetting,
    best_of,
    build_grow_network,
    logs_of,
    values_of,
)
from predictors.latency.profile import LatencyProfile
from predictors.network import SKETCH
from predictors.rounds import Forecast
from predictors.sampling import SamplingSettings
from predictors.signals import DrawnToken, NextLaw, Root
from predictors.survival import RatioPrices


class GrowSession(LearnedSession):
    controller: "Grow"
    setting: GrowSetting

    def __init__(self, controller: "Grow", settings: SamplingSettings) -> None:
        nearest = controller.setting(settings)
        super().__init__(controller, settings, asks=nearest.pays)
        self.invariant = float(settings.invariant)
        self._beside, self._left = 0, 1.0  # tokens of a lookup, and the chance that it leaves to a chain

    @property
    def stops(self) -> bool:
        return self.setting.pays

    @property
    def reads_lookup(self) -> bool:
        return self.setting.pays and bool(self.setting.hazard)

    def source(self, root: Root) -> Sourced | None:
        self.begin(root, self.stops)
        self._beside, self._left = 0, 1.0
        if self.bypassed or not self.reads_lookup:
            return None
        found = root.found
        assert found is not None, "asked where something was found"
        seen = Seen(found.length, len(found.tokens), found.seen, found.agreed, 0.0, 0.0)
        count, left = self.setting.looked_up(lookup_survival(self.setting.hazard, seen, len(found.tokens)))
        self._beside, self._left = int(count), float(left)
        return Sourced(self._beside) if self._beside and not self.setting.goes_on(self._left) else None

    def plan(self, root: Root) -> int | None:
        if root.found is None or not root.found.length:
            self._beside, self._left = 0, 1.0
        self.begin(root, self.stops)
        if self.bypassed or not self.stops:
            return self.setting.static_length
        self._chances: list[np.ndarray] = []
        self._sum, self._previous, self._reached = 0.0, 0.0, self._left
        return None

    def stop_after(self, drawn: DrawnToken) -> bool | Tensor:
        if self.bypassed or not self.setting.pays:
            return drawn.drafted >= self.setting.static_length
        level, logs = drawn.drafted - 1, logs_of(drawn.law.likeliest(CANDIDATES).cpu().double().numpy()).tolist()
        features = [*logs, self._sum, self._previous, level, self.invariant]
        chances_K, distance, standard = self.controller.growing.of_one(features)
        first = float(chances_K[0])
        self.heard(Forecast(level, first, distance, tuple(standard[:SKETCH])), finite=math.isfinite(first + distance))
        if self.bypassed:
            return drawn.drafted >= self.setting.static_length
        self._chances.append(chances_K)
        self._sum, self._previous, self._reached = self._sum + logs[0], logs[0], self._reached * first
        return not self.setting.goes_on(self._reached)

    def widths(self, laws: Sequence[NextLaw]) -> list[int]:
        setting, count = self.setting, len(laws)
        if not setting.pays or self.bypassed:
            return [1 + leaves for leaves in (*setting.static_leaves, *[0] * count)[:count]]
        if not count:
            return []
        widths: list[int] = setting.widths(values_of(np.stack(self._chances[:count])), self._beside).tolist()
        return widths

    def beside(self, root: Root) -> int:
        return 0 if self.bypassed else self._beside


class Grow(RuledController):
    """Grows chains with leaves: the controller of an exported bundle of kind ``grow``."""

    kind = "grow"
    setting_class, prices_class = GrowSetting, RatioPrices
    scalars = SCALARS
    follows_one_draft = True
    network: GrowNetwork
    settings: tuple[GrowSetting, ...]
    prices: RatioPrices

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.network = build_grow_network(bundle.tensors, bundle.source)

    def doubt(self, profile: LatencyProfile) -> str | None:
        return ratio_doubt(self.kind, self.prices, profile, "Fit it here (dvc repro).")

    @property
    def num_features(self) -> int:
        return len(SCALARS)

    def outputs(self, features: Tensor) -> Tensor:
        """Compute the chances of the candidates [B, K]."""
        return self.network(features).softmax(dim=-1)[:, :-1].cummin(dim=-1).values

    def question_seconds(self, profile: LatencyProfile) -> float:
        return profile.latency("grow", levels=GAMMA).seconds / GAMMA

    def start(self, settings: SamplingSettings) -> GrowSession:
        return GrowSession(self, settings)

    @cached_property
    def growing(self) -> Growing:
        """The network, on the host."""
        return Growing(self.network)


@dataclass(eq=False)
class Cumulative(Configured):
    """EAGLE-2's rule on a chain with leaves: draft ``levels``, and of all candidates submit the ``nodes`` that the draft's own
    probabilities make likeliest to be reached and right, Π q. Where a coin decides about tokens the chain is without leaves.

    Source: Li et al. 2024 (dynamic draft trees by cumulative confidence); theirs extends several nodes of a level.
    """

    levels: Count = 4
    nodes: Count = 6
    kind = "cumulative"

    def plan(self, root: Root) -> int | None:
        return self.levels

    def widths(self, laws: Sequence[NextLaw]) -> list[int] | None:
        if not laws:
            return []
        chances_LK = np.stack([law.likeliest(CANDIDATES).double().cpu().numpy() for law in laws])
        widths: list[int] = best_of(values_of(chances_LK), self.nodes).tolist()
        return widths
