"""The Parquet tables of the verifier comparison: exact expectations at roots, acceptance by depth, and timed decodes."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.measurement_table import COUNTS
from pipelines.measuring.verifiers.names import ACCEPTANCE, DECODING, ROOTS
from pipelines.outputs import replacing
from predictors.rounds import PHASES

WHERE = [(name, pa.string()) for name in ("setting", "prompt", "document", "slice")]
ARM = [(name, pa.string()) for name in ("family", "drafter", "verifier")]
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
    DECODING: pa.schema(
        [
            *WHERE,
            ("split", pa.string()),
            ("order", pa.int32()),
            *ARM,
            ("tokens", pa.int32()),
            ("seconds", pa.float64()),
            *((name, pa.int32()) for name in COUNTS),
            *((f"seconds_{phase}", pa.float64()) for phase in (*PHASES, "rest")),
        ]
    ),
}


def write_tables(folder: Path, tables: dict[str, Rows]) -> None:
    """Write the three tables."""
    for name, schema in SCHEMAS.items():
        with replacing(folder / name) as partial:
            pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), partial)
