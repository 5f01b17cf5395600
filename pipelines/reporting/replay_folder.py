"""A finished replay on one device's latency profile."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.replay.names import REPLAYED


@dataclass(frozen=True)
class ReplayResults:
    """``decoding``: replayed decodes; ``measured``: tables of decodes on the clock by the study that timed them; ``origin``."""

    decoding: pd.DataFrame
    measured: dict[str, pd.DataFrame]
    origin: dict[str, Any]


def read_replay(folder: Path, measured: dict[str, pd.DataFrame]) -> ReplayResults | None:
    """The replay in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    return ReplayResults(pd.read_parquet(folder / REPLAYED), measured, json.loads((folder / PROVENANCE).read_text()))
