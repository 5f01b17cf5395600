"""A latency profile written by hand: few cells of round numbers, in milliseconds."""

import numpy as np

from predictors.latency.profile import LatencyTable

MILLISECOND = 1e-3


def table(axes, milliseconds, calls=40):
    """A table's record, with quartiles 0.9 and 1.2 times the median; its axes are sorted, as writers of JSON may sort them."""
    median = MILLISECOND * np.array(milliseconds, dtype=float)
    return LatencyTable(axes, median, 0.9 * median, 1.2 * median, calls).to_record()


PROFILE = {
    "schema": 2,
    "pair": "toys",
    "tables": {
        "draft": table({"rows": [1, 4], "context": [32, 128]}, [[1, 2], [1.5, 3]]),
        "target": table({"tokens": [1, 5], "context": [32, 128]}, [[8, 10], [12, 25]]),
        "chain_drawing": table({"drafted": [1, 4], "sampled": [0, 1]}, [[0.1, 0.2], [0.3, 0.6]]),
        "chain_verification": table({"drafted": [0, 1, 4], "sampled": [0, 1]}, [[0.1, 0.1], [0.2, 0.3], [0.4, 0.5]]),
        "branch_candidates": table({"rows": [1, 4], "sampled": [0, 1]}, [[0.1, 0.2], [0.5, 0.8]]),
        "branch_drawing": table({"rows": [1, 4], "sampled": [0, 1]}, [[0.1, 0.2], [0.5, 1]]),
        "branch_verdict": table({"candidates": [1, 4], "sampled": [0, 1]}, [[0.1, 0.4], [0.1, 0.9]]),
        "draft_hugging_face": table({"rows": [1], "context": [32, 128]}, [[2, 5]]),
        "target_hugging_face": table({"tokens": [1], "context": [32, 128]}, [[12, 11]]),
        "target_prefill": table({"tokens": [16, 64]}, [20, 1500]),
        "draft_prefill": table({"tokens": [16]}, [4]),
        "predictor": table({"features": [16, 64]}, [0.2, 0.4]),
    },
    "settings": {},
    "provenance": {
        "commit": "0123456789abcdef",
        "uncommitted_changes": True,
        "device": {"slug": "toy-1c"},
        "models": {
            "target": {"dtype": "bfloat16", "forward": "compact"},
            "draft": {"dtype": "float32", "forward": "compact"},
        },
        "threads": 3,
        "date": "2026-01-02 03:04 UTC",
        "notes": ["contexts [512] are cut to 128: the models hold no more"],
    },
}
