"""The file that the measurement of methods without a draft model writes; its other names are `pipelines.measuring.names`."""

DECODING = "decoding.parquet"
