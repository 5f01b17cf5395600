"""Writing a Parquet table whole or not at all, and the columns that tables of roots and replayed texts share."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.measurement_log import Rows
from pipelines.outputs import replacing

WHERE = [(name, pa.string()) for name in ("setting", "prompt", "document", "slice")]
ARM = [(name, pa.string()) for name in ("family", "drafter", "verifier")]


def write_table(path: Path, rows: Rows, schema: pa.Schema) -> None:
    """Write ``rows``, whole or not at all."""
    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)
