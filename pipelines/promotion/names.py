"""Names that a trial writes and its report reads."""

DECODING, VERDICT = "decoding.parquet", "verdict.json"
