"""Names that the measurement of selectors writes and its report reads."""

DECODING, ROUNDS, PRICES = "decoding.parquet", "rounds.parquet", "prices.json"
STATIC, SELECTOR, ACTION = "static", "selector", "action"  # families of arms
BUNDLE = "delayed_tree-"  # followed by the rule: bundles of selectors
