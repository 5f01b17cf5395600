"""Names that the measurement of stop rules writes and its report reads."""

DECODING = "decoding.parquet"
# Families of arms.
CHAIN, CONFIDENCE, RULE, FORK, CONFIG, DYNAMIC = "chain", "confidence", "rule", "fork", "config", "dynamic fork"
TREES = (FORK, CONFIG, DYNAMIC)
ASKED = "asked anyway"  # a stop model that calibration leaves unasked
UNLEARNED = ("entropy", "roc", "ema")
STOPPERS = ("logistic", "specdecpp", "early_stop-1", "early_stop-2")
EARLY_STOPS = ("early_stop-1", "early_stop-2")  # MCSD's, that also stop forks
