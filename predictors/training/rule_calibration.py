"""How a learned controller's rule and its trust in features are calibrated on validation rows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RuleCalibration:
    """The largest trusted squared distance is ``distance_margin`` times the ``distance_quantile`` on validation rows;
    ``bootstrap_replicates`` behind intervals."""

    distance_quantile: float = 0.999
    distance_margin: float = 2.0
    bootstrap_replicates: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.distance_quantile <= 1 or self.distance_margin <= 0:
            raise ValueError("distance_quantile must lie in (0, 1] and distance_margin must be positive.")
