"""The promotion gate: trials of challengers, and verdicts on them."""
