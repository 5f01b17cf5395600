"""Names that a trial writes and its report reads."""

DECODES, ROUNDS, VERDICT = "decodes.parquet", "rounds.parquet", "verdict.json"
CHALLENGER, CHAMPION = "challenger", "champion"  # arms of a trial
STATIC = "chain"  # family of the static chains
RESERVE = "reserve"  # the split that further looks open
