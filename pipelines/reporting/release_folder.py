"""What tuning chose on one device, and the gate's verdicts on bundles that were tried there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.measuring.tuning.names import CHOICES
from pipelines.promotion.names import VERDICT


@dataclass(frozen=True)
class ReleaseResults:
    """``choices`` of tuning (none: not tuned), and ``verdicts`` by bundle."""

    choices: list[dict[str, Any]]
    verdicts: dict[str, dict[str, Any]]


def read_release(tuning: Path, trials: Path, device: str) -> ReleaseResults | None:
    """Below ``tuning`` and, by bundle, below ``trials``; ``None`` if neither has been on this device."""
    tuned = (tuning / device / CHOICES).is_file()
    choices = json.loads((tuning / device / CHOICES).read_text()) if tuned else []
    verdicts = {
        path.parent.parent.name: json.loads(path.read_text()) for path in sorted(trials.glob(f"*/{device}/{VERDICT}"))
    }
    return ReleaseResults(choices, verdicts) if choices or verdicts else None
