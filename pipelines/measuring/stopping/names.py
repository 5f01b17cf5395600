"""Names that the measurement of stop rules writes and its report reads."""

DECODING = "decoding.parquet"
CHAIN, CONFIDENCE, RULE, FORK, DYNAMIC = "chain", "confidence", "rule", "fork", "dynamic fork"  # families of arms
UNLEARNED = ("entropy", "roc", "ema")
STOPPERS = ("logistic", "specdecpp", "early_stop-1", "early_stop-2")
EARLY_STOPS = ("early_stop-1", "early_stop-2")  # MCSD's, that also stop forks
