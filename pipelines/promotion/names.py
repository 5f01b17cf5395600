"""Names that a trial writes and its report reads."""

DECODING, VERDICT = "decoding.parquet", "verdict.json"
BEST_STATIC = "best static"  # baseline of evidence, where there is no champion
