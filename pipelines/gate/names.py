"""Names that a trial writes and its report reads."""

VERDICT = "verdict.json"
CHALLENGER, CHAMPION = "challenger", "champion"  # aliases in the registry, and arms of a trial
RESERVE = "reserve"  # the split that further looks open
