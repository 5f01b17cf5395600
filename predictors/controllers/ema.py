"""A moving average of accepted tokens chooses among a few draft lengths (as adaptive draft lengths of serving engines do).

    a ← decay a + (1 - decay) n_a                  n_a: tokens accepted in a row in the round that ended
    length = the shortest tier >= a + reach        the longest tier where none is long enough

A round that accepted all of a short draft says that more was possible, hence the ``reach``. Known at the root: lossless.
"""

from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, NotNegative, Share, ascending, not_empty
from predictors.controllers.base import Configured, Session
from predictors.rounds import RoundRecord
from predictors.signals import Root


@dataclass(frozen=True)
class EMAConfig(Checked):
    """``tiers``: draft lengths, ascending. ``decay`` of the average, which starts a ``reach`` below the middle
    tier; ``reach``: tokens tried beyond it."""

    tiers: Annotated[tuple[Count, ...], not_empty, ascending] = (1, 2, 4, 8)
    decay: Share = 0.8
    reach: NotNegative = 1.0


class EMASession(Session):
    def __init__(self, config: EMAConfig) -> None:
        self.config = config
        self.average = max(config.tiers[len(config.tiers) // 2] - config.reach, 0.0)

    def plan(self, root: Root) -> int:
        enough = [tier for tier in self.config.tiers if tier >= self.average + self.config.reach]
        return enough[0] if enough else self.config.tiers[-1]

    def end_round(self, outcome: RoundRecord) -> None:
        if outcome.submitted:
            decay = self.config.decay
            self.average = decay * self.average + (1 - decay) * outcome.accepted_in_sequence


class EMA(Configured):
    kind = "ema"
    config_class, session_class = EMAConfig, EMASession
