"""The Parquet table of first rounds at the roots of root traces."""

import pyarrow as pa

FIRST_ROUNDS_ROWS = pa.schema(
    [
        *((name, pa.string()) for name in ("setting", "prompt", "document")),
        ("root", pa.int32()),
        *((name, pa.string()) for name in ("rule", "action")),
        ("emitted", pa.float64()),  # mean over the decodes at this root
        ("expected", pa.float64()),  # the root trace's label
    ]
)
