"""The Parquet table of first rounds at the roots of root traces."""

from pathlib import Path

import pyarrow as pa

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.tables import write_table

FIRST_ROUNDS = pa.schema(
    [
        *((name, pa.string()) for name in ("setting", "prompt", "document")),
        ("root", pa.int32()),
        *((name, pa.string()) for name in ("rule", "action")),
        ("emitted", pa.float64()),  # mean over the decodes at this root
        ("expected", pa.float64()),  # the root trace's label
    ]
)


def write_first_rounds(path: Path, rows: Rows) -> None:
    """Write the table."""
    write_table(path, rows, FIRST_ROUNDS)
