"""The file that the measurement of stop rules writes; its other names are `pipelines.measuring.names`."""

DECODING = "decoding.parquet"
