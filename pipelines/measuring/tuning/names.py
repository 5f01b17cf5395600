"""Names that tuning writes and its report reads."""

DECODING, CHOICES = "decoding.parquet", "choices.json"
