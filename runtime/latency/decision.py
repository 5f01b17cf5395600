"""Cells of table ``predictor``: one decision of a small head on ``features`` numbers, as a learned controller takes it.

The head is H-RAD's (`predictors.network`), with random weights and all features kept; the two numbers a decision rests on, class
and distance from the training rows, are read by the host.
"""

from collections.abc import Callable, Sequence

import torch

from predictors.calibration import Calibration
from predictors.network import HRADNetwork, squared_distance
from runtime.latency.cells import Cell, timed


class Decision:
    """A head on ``num_features`` random numbers on ``device``."""

    def __init__(self, num_features: int, device: torch.device, generator: torch.Generator) -> None:
        self._network = HRADNetwork(num_features, 0, None).eval().to(device)
        self._features = torch.randn(1, num_features, generator=generator).to(device)
        self._calibration = Calibration()

    @torch.inference_mode()
    def take(self) -> tuple[int, float]:
        """The likeliest class and the squared distance."""
        reduced = self._network.reduction(self._features)
        probabilities = self._calibration.probabilities(self._network.head(reduced))
        return int(probabilities[0].argmax()), float(squared_distance(reduced)[0])


def decision_cells(
    features: Sequence[int], device: torch.device, generator: torch.Generator, before: Callable[[], None]
) -> list[Cell]:
    """Cells of the table ``predictor``."""
    return [
        Cell(("predictor",), {"features": count}, timed(Decision(count, device, generator).take, device), before)
        for count in features
    ]
