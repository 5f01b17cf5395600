"""The Parquet tables of the verifier comparison: exact expectations at roots, and acceptance by depth."""

from pathlib import Path

import pyarrow as pa

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.tables import columns, write_table

ROOTS, ACCEPTANCE = "roots.parquet", "acceptance.parquet"
FAMILIES = ("chain", "iid", "delayed", "distinct")  # families of shapes whose rules compete with each other
AS_DRAFTED = 0  # column draws: as many as were drafted at the node
WHERE = columns(pa.string(), "setting", "prompt", "document", "slice")
SCHEMAS = {
    ROOTS: pa.schema(
        [
            *WHERE,
            ("split", pa.string()),
            ("root", pa.int32()),
            *columns(pa.string(), "family", "drafter", "verifier"),
            ("expected", pa.float64()),  # 1 + E[tau | tree]
            ("nodes", pa.float64()),
        ]
    ),
    ACCEPTANCE: pa.schema(
        [
            *WHERE,
            *columns(pa.int32(), "root", "depth", "paths"),
            ("distance", pa.float64()),
            ("solver", pa.string()),
            ("draws", pa.int32()),  # `AS_DRAFTED`, or so many
            ("rate", pa.float64()),
        ]
    ),
}


def write_tables(folder: Path, tables: dict[str, Rows]) -> None:
    """Write both tables."""
    for name, schema in SCHEMAS.items():
        write_table(folder / name, tables[name], schema)
