"""How a learned controller's rule and its trust in features are calibrated on validation rows."""

from dataclasses import dataclass
from typing import Annotated

from predictors.config import Checked, Count, Positive, above, at_most


@dataclass(frozen=True)
class RuleCalibration(Checked):
    """The largest trusted squared distance is ``distance_margin`` times the ``distance_quantile`` on validation rows;
    ``bootstrap_replicates`` for intervals."""

    distance_quantile: Annotated[float, above(0), at_most(1)] = 0.999
    distance_margin: Positive = 2.0
    bootstrap_replicates: Count = 2000
    seed: int = 0
