"""A finished measurement of stop rules on one device, and what their models' training says of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.names import STOPPERS
from pipelines.measuring.stopping.names import DECODING


@dataclass(frozen=True)
class StoppingResults:
    """``records`` of the stopper stage by model, timed ``decoding``, and ``origin``."""

    records: dict[str, dict[str, Any]]
    decoding: pd.DataFrame
    origin: dict[str, Any]


def read_stopping(folder: Path, records: Path) -> StoppingResults | None:
    """The measurement in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    paths = {name: records / f"{name}.json" for name in STOPPERS}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
    return StoppingResults(found, pd.read_parquet(folder / DECODING), json.loads((folder / PROVENANCE).read_text()))
