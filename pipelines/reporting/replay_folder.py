"""A finished replay on one device's latency profile."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.replay.names import REPLAYED, replayed_at


@dataclass(frozen=True)
class ReplayResults:
    """``decoding``: replayed decodes; ``measured``: tables of decodes on the clock by the study that timed them; ``elsewhere``:
    decodes at other cost ratios; ``origin``."""

    decoding: pd.DataFrame
    measured: dict[str, pd.DataFrame]
    origin: dict[str, Any]
    elsewhere: dict[float, pd.DataFrame]


def read_replay(folder: Path, measured: dict[str, pd.DataFrame]) -> ReplayResults | None:
    """The replay in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    origin = json.loads((folder / PROVENANCE).read_text())
    elsewhere = {ratio: pd.read_parquet(folder / replayed_at(ratio)) for ratio in origin.get("cost_ratios", [])}
    return ReplayResults(pd.read_parquet(folder / REPLAYED), measured, origin, elsewhere)
