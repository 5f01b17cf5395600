"""The Parquet tables of a measurement of selectors."""

from pathlib import Path

import pyarrow as pa

from pipelines.measuring.decoding_table import DECODES, write_table
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.selection.names import DECODING, ROUNDS

SCHEMAS = {
    DECODING: DECODES,
    ROUNDS: pa.schema(
        [
            *((name, pa.string()) for name in ("setting", "prompt", "document")),
            ("root", pa.int32()),
            *((name, pa.string()) for name in ("rule", "action")),
            ("emitted", pa.float64()),  # mean over the decodes at this root
            ("expected", pa.float64()),  # the root trace's label
        ]
    ),
}


def write_tables(folder: Path, tables: dict[str, Rows]) -> None:
    """Write both tables."""
    for name, schema in SCHEMAS.items():
        write_table(folder / name, tables[name], schema)
