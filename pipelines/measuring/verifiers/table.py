"""The Parquet tables of the verifier comparison: exact expectations at roots, and acceptance by depth."""

from pathlib import Path

import pyarrow as pa

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.tables import ARM, WHERE, write_table
from pipelines.measuring.verifiers.names import ACCEPTANCE, ROOTS

SCHEMAS = {
    ROOTS: pa.schema(
        [
            *WHERE,
            ("split", pa.string()),
            ("root", pa.int32()),
            *ARM,
            ("expected", pa.float64()),  # 1 + E[tau | tree]
            ("nodes", pa.float64()),
        ]
    ),
    ACCEPTANCE: pa.schema(
        [
            *WHERE,
            ("root", pa.int32()),
            ("depth", pa.int32()),
            ("paths", pa.int32()),
            ("distance", pa.float64()),
            ("solver", pa.string()),
            ("draws", pa.int32()),  # 0: as many as were drafted at the node
            ("rate", pa.float64()),
        ]
    ),
}


def write_tables(folder: Path, tables: dict[str, Rows]) -> None:
    """Write both tables."""
    for name, schema in SCHEMAS.items():
        write_table(folder / name, tables[name], schema)
