"""What the grids of a latency profile may be."""

import pytest

from runtime.latency import LatencyConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"contexts": ()}, "contexts must name at least one"),
        ({"features": (8, 4)}, "features must ascend"),
        ({"guessed": (1, 1)}, "guessed must ascend"),
        ({"prefill_tokens": (0, 1)}, r"prefill_tokens\[0\] must be >= 1"),
        ({"drafted": (-1, 1)}, r"drafted\[0\] must be >= 0"),
        ({"drafted": (0,)}, "drafted must start at 0 and go on"),
        ({"draft_rows": (2, 3)}, "draft_rows must start at 1"),
        ({"target_tokens": (2,)}, "target_tokens must start at 1"),
        ({"tree_nodes": (3, 4)}, r"tree_nodes \[4\] are no multiples of tree_paths=3"),
        ({"reference_rows": (5,)}, r"reference_rows \[5\] are none of draft_rows"),
        ({"reference_tokens": (1, 6)}, r"reference_tokens \[6\] are none of target_tokens"),
        ({"branch_rows": (0, 1)}, r"branch_rows\[0\] must be >= 1"),
        ({"calls": 0}, "calls must be >= 1"),
        ({"visits": 0}, "visits must be >= 1"),
        ({"repairs": -1}, "repairs must be >= 0"),
        ({"warmup": -1}, "warmup must be >= 0"),
    ],
)
def test_bad_parameters_are_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        LatencyConfig(**values)
