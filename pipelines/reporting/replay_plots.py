"""A plot of replayed policies: what each gains over the best static chain, and how much room there is."""

from typing import Any

from matplotlib.figure import Figure

from pipelines.measuring.replay.names import BRANCHES, BRANCHES_WALL, ORACLE
from pipelines.measuring.stopping.names import CHAIN, CONFIDENCE, RULE
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, RED

COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, BRANCHES: RED, BRANCHES_WALL: RED, ORACLE: PURPLE}


def replayed_gains(timing: dict[str, Any]) -> Figure:
    """Gain of every policy over the best static chain, one panel per sampling setting, the fastest on top."""
    settings = timing["settings"]
    rows = max(len(row["policies"]) for row in settings)
    figure = Figure(figsize=(5.4 * len(settings), 1.4 + 0.26 * rows), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        policies = [policy for policy in row["policies"] if policy["family"] in COLOURS]
        policies.sort(key=lambda policy: -policy["gain"]["value"])
        for place, policy in enumerate(policies):
            centre, low, high = (100 * policy["gain"][name] for name in ("value", "low", "high"))
            errors = [[max(0.0, centre - low)], [max(0.0, high - centre)]]
            colour = COLOURS[policy["family"]]
            axes.errorbar(centre, place, xerr=errors, fmt="o", color=colour, markersize=4.5, capsize=2, linewidth=1)
        axes.axvline(0, color="#333333", linewidth=1)
        axes.set_yticks(range(len(policies)), [policy["policy"] for policy in policies])
        axes.set_ylim(len(policies) - 0.5, -0.5)
        axes.set(xlabel="gain over the best static chain, replayed, %", title=row["setting"])
        axes.grid(axis="x", color="#e6e6e6")
    return figure
