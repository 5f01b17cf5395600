"""What the gate asks: section ``promotion`` of the parameters, fixed before anything is measured."""

from dataclasses import dataclass
from typing import Annotated

from pipelines.evidence.looks import levels
from predictors.config import Checked, Count, NotNegative, Positive, above, at_least, below


@dataclass(frozen=True)
class Bounds(Checked):
    """Section ``promotion``.

    Parameters
    ----------
    margin
        A gain's lower bound must lie above it, over every rival.
    alpha
        Total one-sided error of all looks at a challenger.
    looks
        Planned looks, each by the share of all planned prompts that it has.
    promised, power
        The true gain that the gate promises to pass, and in which share of cases.
    guardrail
        The most that a sampling setting or a slice may lose.
    slice_documents, slice_spread
        A slice with fewer timed documents is not judged; by how much true gains of slices differ (scale of the prior).
    calibration_error, min_documents
        The largest error of calibration, and the fewest documents.
    """

    margin: NotNegative = 0.0
    alpha: Annotated[float, above(0), below(0.5)] = 0.025
    looks: tuple[float, ...] = (0.5, 0.75, 1.0)
    promised: float = 0.05
    power: Annotated[float, at_least(0.5), below(1)] = 0.8
    guardrail: NotNegative = 0.05
    slice_documents: Annotated[int, at_least(2)] = 8
    slice_spread: Positive = 0.05
    calibration_error: NotNegative = 0.08
    min_documents: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.promised > self.margin:
            raise ValueError(f"promised must lie above margin ({self.margin}), got {self.promised}.")
        try:
            levels(self.alpha, self.looks)
        except ValueError as error:
            raise ValueError(f"looks: {error}") from error

    def level(self, look: int) -> float | None:
        """One-sided level of a look (from 1); ``None`` after the last planned one."""
        return levels(self.alpha, self.looks)[look - 1] if look <= len(self.looks) else None
