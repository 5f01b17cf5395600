"""Names that tuning writes and its report reads, besides the tables' (`pipelines.measuring.names`)."""

CHOICES = "choices.json"
