"""Names that the replay writes and its report reads. Families besides those of `pipelines.measuring.names`."""

REPLAYED, POLICIES = "replay.parquet", "policies.json"
BRANCHES, BRANCHES_WALL = "branches", "branches, side by side"  # families, on the virtual clock and on the wall's
ORACLE = "oracle"  # arm and family: knows what will be accepted


def replayed_at(cost_ratio: float) -> str:
    """The file of the same policies on a machine with another cost ratio."""
    return f"replay-c{cost_ratio:g}.parquet"
