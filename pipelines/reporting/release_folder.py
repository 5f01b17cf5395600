"""What tuning chose on one device, and the gate's verdicts on bundles that were tried there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.tuning.names import CHOICES, DECODING
from pipelines.promotion.names import VERDICT


@dataclass(frozen=True)
class ReleaseResults:
    """``choices`` and ``decoding`` of tuning (``None``: not tuned), ``verdicts`` by bundle, and the decodes of stage ``measure``."""

    choices: list[dict[str, Any]]
    decoding: pd.DataFrame | None
    verdicts: dict[str, dict[str, Any]]
    measured: pd.DataFrame


def read_release(tuning: Path, trials: Path, device: str, measured: pd.DataFrame) -> ReleaseResults | None:
    """Below ``tuning`` and, by bundle, below ``trials``; ``None`` if neither has been on this device."""
    tuned = (tuning / device / CHOICES).is_file()
    choices = json.loads((tuning / device / CHOICES).read_text()) if tuned else []
    decoding = pd.read_parquet(tuning / device / DECODING) if tuned else None
    verdicts = {
        path.parent.parent.name: json.loads(path.read_text()) for path in sorted(trials.glob(f"*/{device}/{VERDICT}"))
    }
    return ReleaseResults(choices, decoding, verdicts, measured) if choices or verdicts else None
