"""The fits of one stage and device on disk: a table and where it comes from."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.outputs import replacing, write_json

FITS, PROVENANCE = "fits.parquet", "provenance.json"


def write_fits(folder: Path, rows: Sequence[dict[str, Any]], origin: dict[str, Any]) -> None:
    """Both files, the provenance last."""
    with replacing(folder / FITS) as partial:
        pd.DataFrame(rows).to_parquet(partial)
    write_json(folder / PROVENANCE, origin)


def read_fits(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows and provenance; the process ends if the stage has not finished."""
    if not (folder / PROVENANCE).is_file():
        raise SystemExit(f"{folder} holds no finished study: run its stage first.")
    return pd.read_parquet(folder / FITS), json.loads((folder / PROVENANCE).read_text())
