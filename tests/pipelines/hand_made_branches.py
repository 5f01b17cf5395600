"""Branch-parallel arms added to the hand-made measurement, written by hand."""

from tests.pipelines import hand_made_measured
from tests.pipelines.hand_made_measured import MAIN_SPEED, decodes, write_measured

BRANCH_SPEED = {  # tokens per second; chain-3 makes 160
    "pearl-2": 250,  # fast on test prompts, but not what validation chose
    "pearl-4": 170,
    "specbranch-8": 240,
    "specbranch-no-hrad-4": 200,
    "specbranch-no-branch-8": 150,
}
# The others are the only ones of their kind.
CHOSEN = hand_made_measured.CHOSEN | {"pearl": "pearl-4", "specbranch": "specbranch-8"}
PEARL_ROUNDS = {"levels": 100, "rolled_back": 40, "trimmed": 0, "hits": 10, "branch_points": 25, "tested_points": 20}
SPECBRANCH_ROUNDS = {"levels": 80, "rolled_back": 16, "trimmed": 4, "hits": 18, "branch_points": 24}
SPECBRANCH_ROUNDS |= {"tested_points": 21, "drafted": 200}
IN_TURN_ROUNDS = {"levels": 60, "rolled_back": 20}


def counted(arm: str, seconds: float) -> dict:
    """What the rounds of an arm did, 30 of them."""
    if arm not in BRANCH_SPEED:
        return {}
    if arm.startswith("specbranch-no-branch"):
        return IN_TURN_ROUNDS
    counts = PEARL_ROUNDS if arm.startswith("pearl") else SPECBRANCH_ROUNDS
    idle = 0.4 if arm.startswith("pearl") else 0.1
    steady = {"seconds_steady": 0.5 * seconds, "seconds_steady_wait": 0.5 * seconds * idle}
    return {**counts, "segments": 30 - counts["hits"], "virtual": True, **steady}


def branch_rows(speed: dict | None = None) -> list[dict]:
    """The rows of the hand-made measurement's main arms, and of branch arms of these speeds."""
    speed = BRANCH_SPEED if speed is None else speed
    rows = decodes(MAIN_SPEED | speed, noise=0.0)
    return [row | counted(row["arm"], row["seconds"]) if "rounds" in row else row for row in rows]


def write_branches(folder, rows=None) -> None:
    """A measurement with branch arms, as the stage leaves it."""
    write_measured(folder, branch_rows() if rows is None else rows, chosen=CHOSEN)
