"""When a learned controller is not to be trusted, and one warning per kind of reason that decoding goes on without it: settings
or a context that were not captured, features far from the training rows, an output that is no number."""

import warnings

from predictors.contract import CaptureContract
from predictors.sampling import SamplingSettings


class Guard:
    """Keeps a controller of ``kind`` to what its features were captured under; ``instead`` says how decoding goes on."""

    def __init__(self, kind: str, contract: CaptureContract, instead: str) -> None:
        self._kind = kind
        self._range = contract.serving_range
        self._instead = instead
        self._warned: set[str] = set()

    def covers(self, settings: SamplingSettings) -> bool:
        """Whether ``settings`` are among those captured; warns if not."""
        wanted = (settings.temperature, float(settings.top_k), settings.top_p)
        known = self._range.settings
        if any(all(abs(a - b) < 1e-6 for a, b in zip(wanted, row, strict=True)) for row in known):
            return True
        rows = [tuple(row) for row in known]
        self.warn("settings", f"it is calibrated for (temperature, top_k, top_p) in {rows}, not for {wanted}")
        return False

    def reaches(self, position: int) -> bool:
        """Whether a context of ``position`` tokens is neither shorter nor longer than any captured one; warns if not."""
        shortest, longest = self._range.min_context, self._range.max_context
        if shortest <= position <= longest:
            return True
        reason = f"a context of {position} tokens lies outside the captured {shortest} to {longest}"
        self.warn("context", reason)
        return False

    def trusts(self, finite: bool, distance: float, limit: float) -> bool:
        """Whether a head's output is ``finite`` and its features are within ``limit`` of the training rows; warns if not."""
        if not finite:
            self.warn("not finite", "its head returned a value that is not finite")
        elif distance > limit:
            far = f"the features lie at squared distance {distance:.1f} from the training rows"
            self.warn("distance", f"{far}, beyond the calibrated {limit:.1f}")
        return finite and distance <= limit

    def warn(self, kind: str, reason: str) -> None:
        """Warn once per ``kind`` of reason."""
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{self._kind} is bypassed: {reason}. Decoding goes on at {self._instead}.", stacklevel=2)
