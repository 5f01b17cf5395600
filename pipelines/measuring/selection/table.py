"""The Parquet tables of a measurement of selectors."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.selection.names import DECODING, ROUNDS
from pipelines.outputs import replacing
from predictors.rounds import PHASES

SCHEMAS = {
    DECODING: pa.schema(
        [
            *((name, pa.string()) for name in ("setting", "prompt", "document", "slice")),
            ("prompt_tokens", pa.int32()),
            ("order", pa.int32()),
            *((name, pa.string()) for name in ("family", "drafter", "verifier")),
            ("tokens", pa.int32()),
            ("seconds", pa.float64()),
            *((name, pa.int32()) for name in ("rounds", "emitted", "drafted", "levels", "bypassed")),
            ("seconds_rounds", pa.float64()),  # without the prefill
            *((f"seconds_{phase}", pa.float64()) for phase in (*PHASES, "rest")),
        ]
    ),
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
        with replacing(folder / name) as partial:
            pq.write_table(pa.Table.from_pylist(tables[name], schema=schema), partial)
