"""A plot of replayed policies: what each gains over the best static chain, and how much room there is."""

from typing import Any

from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, CONFIDENCE, RULE
from pipelines.measuring.replay.names import BRANCHES, BRANCHES_WALL, ORACLE
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, RED, gain_whiskers

COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, BRANCHES: RED, BRANCHES_WALL: RED, ORACLE: PURPLE}


def replayed_gains(timing: dict[str, Any]) -> Figure:
    """Gain of every policy over the best static chain, one panel per sampling setting, the fastest on top."""
    panels = []
    for row in timing["settings"]:
        shown = [policy for policy in row["policies"] if policy["family"] in COLOURS]
        shown.sort(key=lambda policy: -policy["gain"]["value"])
        panels.append((row["setting"], [(one["policy"], one["gain"], COLOURS[one["family"]]) for one in shown]))
    return gain_whiskers(panels, "gain over the best static chain, replayed, %", row_inches=0.26)
