"""Tokens per second of the arms that draft beside the target, from ``timing.json``."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipelines.measuring.names import (
    EXPLICIT,
    PAPER,
    PEARL,
    PLAIN,
    SPECBRANCH,
    WITHOUT_BRANCHES,
    WITHOUT_HRAD,
    branch_arm,
)
from pipelines.reporting.branch_folder import VIRTUAL_CLOCK, shown_name
from pipelines.reporting.plots import BLUE, COLOURS, GREEN, GREY, LIGHT_BLUE, ORANGE, PURPLE, RED

PRESET_COLOURS = {PEARL: ORANGE, SPECBRANCH: RED, WITHOUT_HRAD: PURPLE, WITHOUT_BRANCHES: GREEN}
PRESET_COLOURS |= {PAPER: GREY, EXPLICIT: LIGHT_BLUE}
HATCH = "///"  # the virtual clock


def branch_speeds(timing: dict[str, Any]) -> Figure:
    """One panel per temperature; the line is the best static draft."""
    rows = timing["temperatures"]
    height = 1.5 + 0.36 * max(len(row["arms"]) for row in rows)
    figure = Figure(figsize=(5.6 * len(rows), height), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        rates = [speed["tokens_per_second"] for speed in row["arms"].values()]
        value, low, high = (np.array([rate[name] for rate in rates], float) for name in ("value", "low", "high"))
        bars = axes.barh(
            range(len(rates)),
            value,
            xerr=np.maximum([value - low, high - value], 0),
            color=[_colour(arm) for arm in row["arms"]],
            edgecolor="white",
            ecolor="#333333",
            capsize=2.5,
        )
        for bar, speed in zip(bars, row["arms"].values(), strict=True):
            bar.set_hatch(HATCH if speed["clock"] == VIRTUAL_CLOCK else "")
        axes.axvline(row["arms"][row["static"]]["tokens_per_second"]["value"], color="#333333", linewidth=1)
        axes.set_yticks(range(len(rates)), [shown_name(arm) for arm in row["arms"]])
        axes.invert_yaxis()
        axes.set(title=f"T = {row['temperature']:g}", xlabel="tokens per second", xlim=(0, None))
        axes.grid(axis="x", color="#e6e6e6")
    clocks = [Patch(facecolor="#8a8a8a", edgecolor="white", hatch=hatch) for hatch in ("", HATCH)]
    figure.legend(clocks, ["wall clock", "virtual clock"], loc="outside lower center", ncols=2)
    return figure


def _colour(arm: str) -> str:
    parts = branch_arm(arm)
    if parts is not None:
        return PRESET_COLOURS[parts.preset]
    return COLOURS[PLAIN] if arm == PLAIN else BLUE
