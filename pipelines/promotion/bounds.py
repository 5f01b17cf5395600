"""What the gate asks: section ``promotion`` of the parameters, fixed before anything is measured."""

from dataclasses import dataclass

from pipelines.evidence.looks import levels


@dataclass(frozen=True)
class Bounds:
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

    margin: float = 0.0
    alpha: float = 0.025
    looks: tuple[float, ...] = (0.5, 0.75, 1.0)
    promised: float = 0.05
    power: float = 0.8
    guardrail: float = 0.05
    slice_documents: int = 8
    slice_spread: float = 0.05
    calibration_error: float = 0.08
    min_documents: int = 8

    def __post_init__(self) -> None:
        for name in ("margin", "guardrail", "calibration_error"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")
        if not self.promised > self.margin:
            raise ValueError(f"promised must lie above margin ({self.margin}), got {self.promised}.")
        if not 0 < self.alpha < 0.5:
            raise ValueError(f"alpha must lie within (0, 0.5), got {self.alpha}.")
        if not 0.5 <= self.power < 1:
            raise ValueError(f"power must lie within [0.5, 1), got {self.power}.")
        if not self.slice_spread > 0:
            raise ValueError(f"slice_spread must be > 0, got {self.slice_spread}.")
        for name, least in (("min_documents", 1), ("slice_documents", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}.")
        try:
            levels(self.alpha, self.looks)
        except ValueError as error:
            raise ValueError(f"looks: {error}") from error

    def level(self, look: int) -> float | None:
        """One-sided level of a look (from 1); ``None`` after the last planned one."""
        return levels(self.alpha, self.looks)[look - 1] if look <= len(self.looks) else None
