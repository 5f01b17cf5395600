"""Tokens per second of branch-parallel arms, from ``timing.json``."""

from typing import Any

from matplotlib.figure import Figure

from pipelines.measuring.names import (
    EXPLICIT,
    PAPER,
    PEARL,
    PRIOR,
    SPECBRANCH,
    WITHOUT_BRANCHES,
    WITHOUT_HRAD,
    branch_arm,
)
from pipelines.reporting.branch_folder import VIRTUAL_CLOCK, WALL_CLOCK, shown_name
from pipelines.reporting.plots import BLUE, GREEN, GREY, LIGHT_BLUE, ORANGE, PURPLE, RED, whiskers

PRESET_COLOURS = {PEARL: ORANGE, SPECBRANCH: RED, WITHOUT_HRAD: PURPLE, WITHOUT_BRANCHES: GREEN}
PRESET_COLOURS |= {PAPER: GREY, PRIOR: "#7a4a1e", EXPLICIT: LIGHT_BLUE}
MARKERS = {WALL_CLOCK: "o", VIRTUAL_CLOCK: "D"}


def branch_speeds(timing: dict[str, Any]) -> Figure:
    """One panel per sampling setting, plain decoding and the best static draft on top."""
    panels = [
        (
            row["setting"],
            [
                (shown_name(arm), [(speed["tokens_per_second"], (_colour(arm), MARKERS[speed["clock"]]))])
                for arm, speed in row["arms"].items()
            ],
        )
        for row in timing["settings"]
    ]
    clocks = {f"{clock} clock": (GREY, marker) for clock, marker in MARKERS.items()}
    return whiskers(panels, "tokens per second", legend=clocks)


def _colour(arm: str) -> str:
    parts = branch_arm(arm)
    return BLUE if parts is None else PRESET_COLOURS[parts.preset]
