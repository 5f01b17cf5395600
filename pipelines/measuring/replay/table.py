"""The Parquet table of replayed decodes: a row per text and policy, means over repeats of chance. Its files, and families besides
those of `pipelines.measuring.names`."""

import pyarrow as pa

from pipelines.measuring.tables import columns

REPLAYED, POLICIES = "replay.parquet", "policies.json"
BRANCHES, BRANCHES_WALL = "branches", "branches, side by side"  # families, on the virtual clock and on the wall's
ORACLE = "oracle"  # arm and family: knows what will be accepted
COUNTS = ("rounds", "submitted", "passes", "accepted", "asked", "looked_up")
REPLAY_ROWS = pa.schema(
    [
        *columns(pa.string(), "split", "setting", "prompt", "document", "slice", "family", "drafter"),
        ("prompt_tokens", pa.int32()),
        *columns(pa.float64(), "tokens", "seconds", *COUNTS),
    ]
)


def replayed_at(cost_ratio: float) -> str:
    """The file of the same policies on a machine with another cost ratio."""
    return f"replay-c{cost_ratio:g}.parquet"
