"""Names that the checks of selectors write and their report reads."""

FIRST_ROUNDS, PRICES = "first_rounds.parquet", "prices.json"
STATIC, SELECTOR = "static", "selector"  # policies that are compared
BUNDLE = "delayed_tree-"  # followed by the rule: bundles of selectors, and arms of the measurement
STATIC_TREE = "static tree "  # followed by the rule: the arm of its best static tree
