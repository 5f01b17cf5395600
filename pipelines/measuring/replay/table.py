"""The Parquet table of replayed decodes: a row per text and policy, means over repeats of chance."""

import pyarrow as pa

COUNTS = ("rounds", "submitted", "passes", "accepted", "asked", "looked_up")
REPLAY_ROWS = pa.schema(
    [
        *((name, pa.string()) for name in ("split", "setting", "prompt", "document", "slice", "family", "drafter")),
        ("prompt_tokens", pa.int32()),
        ("tokens", pa.float64()),
        ("seconds", pa.float64()),
        *((name, pa.float64()) for name in COUNTS),
    ]
)
