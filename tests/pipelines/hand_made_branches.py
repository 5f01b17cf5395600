"""Branch-parallel arms added to the hand-made measurement, and timelines of two arms, written by hand."""

from pipelines.measuring.names import TIMELINES
from pipelines.outputs import write_json
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


def write_branches(folder, rows=None, timelines=True) -> None:
    """A measurement with branch arms, as the stage leaves it."""
    write_measured(folder, branch_rows() if rows is None else rows, chosen=CHOSEN)
    if timelines:
        write_json(folder / TIMELINES, TIMELINES_BY_ARM)


def decoded(levels, idle, submitted, accepted, hit, spans, prefill=False) -> dict:
    """A round of a timeline."""
    counts = {"levels": levels, "idle_levels": idle, "submitted": submitted, "accepted": accepted, "hit": hit}
    return {**counts, "emitted": accepted + 1, "rolled_back": 0, "trimmed": 0, "spans": spans, "prefill": prefill}


def beside_round(start: float, levels: int, submitted: int, accepted: int, hit: bool, idle: int = 0) -> dict:
    """A round of a second: a quarter for the block, then half of one with both models at work, then a verdict."""
    spans = [
        ["target", "wait", start, start + 0.25, False],
        ["draft", "draft", start, start + 0.25, False],
        ["target", "target", start + 0.25, start + 0.75, False],
        ["draft", "draft", start + 0.25, start + 0.65, True],
        ["target", "verify", start + 0.75, start + 1.0, False],
    ]
    return decoded(levels, idle, submitted, accepted, hit, spans)


def turns_round(start: float, levels: int, accepted: int) -> dict:
    """A round of two seconds, one model after the other."""
    spans = [
        ["draft", "controller", start, start + 0.25, False],
        ["draft", "draft", start + 0.25, start + 1.0, False],
        ["target", "wait", start, start + 1.0, False],
        ["target", "target", start + 1.0, start + 2.0, False],
    ]
    return decoded(levels, 0, levels, accepted, False, spans)


PREFILL = decoded(0, 0, 0, 0, False, [["target", "target", 0.0, 1.0, False]], prefill=True)
TIMELINES_BY_ARM = {
    "specbranch-8": [
        PREFILL,
        beside_round(1, levels=8, idle=4, submitted=4, accepted=5, hit=True),
        beside_round(2, levels=4, submitted=3, accepted=2, hit=False),
        beside_round(3, levels=6, idle=2, submitted=2, accepted=2, hit=False),
    ],
    "chain-3": [PREFILL, turns_round(1, levels=4, accepted=1), turns_round(3, levels=3, accepted=3)],
}
