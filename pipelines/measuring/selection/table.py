"""The Parquet table of first rounds at the roots of root traces; names that the checks of selectors and their report share."""

import pyarrow as pa

from pipelines.measuring.tables import columns

FIRST_ROUNDS, PRICES = "first_rounds.parquet", "prices.json"
SELECTOR = "selector"  # family
BUNDLE = "delayed_tree-"  # followed by the rule: bundles of selectors, and arms of the measurement
STATIC_TREE = "static tree "  # followed by the rule: the arm of its best static tree
FIRST_ROUNDS_ROWS = pa.schema(
    [
        *columns(pa.string(), "setting", "prompt", "document"),
        ("root", pa.int32()),
        *columns(pa.string(), "rule", "action"),
        ("emitted", pa.float64()),  # mean over the decodes at this root
        ("expected", pa.float64()),  # the root trace's label
    ]
)
