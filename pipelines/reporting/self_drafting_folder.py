"""A finished measurement of methods without a draft model on one device, and what every way of each is worth by the profile."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.measuring.names import PROVENANCE
from pipelines.measuring.names import METHODS
from pipelines.measuring.self_drafting.names import DECODING


@dataclass(frozen=True)
class SelfDraftingResults:
    """``records`` of the guesser stage by method, timed ``decoding``, and ``origin``."""

    records: dict[str, dict[str, Any]]
    decoding: pd.DataFrame
    origin: dict[str, Any]


def read_self_drafting(folder: Path, records: Path) -> SelfDraftingResults | None:
    """The measurement in ``folder``; ``None`` if there is none."""
    if not (folder / PROVENANCE).is_file():
        return None
    paths = {name: records / f"{name}.json" for name in METHODS}
    found = {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}
    return SelfDraftingResults(found, pd.read_parquet(folder / DECODING), json.loads((folder / PROVENANCE).read_text()))
