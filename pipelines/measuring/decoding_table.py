"""The Parquet table of timed decodes (`pipelines.measuring.verifiers.timing.decode_rows`)."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.measurement_log import Rows
from pipelines.outputs import replacing
from predictors.rounds import PHASES

COUNTS = ("rounds", "tried", "drafted", "guessed", "levels", "accepted", "emitted", "rolled_back")
COUNTS += ("trimmed", "segments", "bypassed")
WHERE = [(name, pa.string()) for name in ("setting", "prompt", "document", "slice")]
ARM = [(name, pa.string()) for name in ("family", "drafter", "verifier")]
DECODES = pa.schema(
    [
        *WHERE,
        ("split", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("order", pa.int32()),
        ("repeat", pa.int32()),
        *ARM,
        ("tokens", pa.int32()),
        ("seconds", pa.float64()),
        *((name, pa.int32()) for name in COUNTS),
        ("seconds_rounds", pa.float64()),  # without the prefill
        *((f"seconds_{phase}", pa.float64()) for phase in (*PHASES, "rest")),
    ]
)


def write_table(path: Path, rows: Rows, schema: pa.Schema) -> None:
    """Write ``rows``, whole or not at all."""
    with replacing(path) as partial:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial)
