"""Plots of the delayed-tree selectors: what choosing is worth by rule, and what is chosen where."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reporting.plots import BLUE, GREEN, GREY, heat_map, whiskers

EXACT, CLOCK, MOST = "selector, exact labels", "selector, on the clock", "oracle, lower bound"
LOOKS = {EXACT: (BLUE, "o"), CLOCK: (GREEN, "s"), MOST: (GREY, "D")}


def gains_by_rule(quality: dict[str, Any], timing: dict[str, Any]) -> Figure:
    """Gain over each rule's best static tree: the selector's, exact and on the clock, and the oracle's at least."""
    rows = [
        (
            exact["rule"],
            [(exact["gain"], LOOKS[EXACT]), (timed["gain"], LOOKS[CLOCK]), (exact["oracle_gain"], LOOKS[MOST])],
        )
        for exact, timed in zip(quality["rules"], timing["rules"], strict=True)
    ]
    return whiskers([("", rows)], "gain over the rule's best static tree", line=0, percent=True, legend=LOOKS)


def choices_by_slice(quality: dict[str, Any]) -> Figure:
    """Share of every action among a selector's choices on held-out roots, one panel per rule, one row per slice."""
    uses = quality["uses"]
    height = 1.2 + 0.28 * sum(len(by_slice) + 2 for by_slice in uses.values())
    figure = Figure(figsize=(11.5, height), layout="constrained")
    panels = figure.subplots(len(uses), 1, height_ratios=[len(by_slice) for by_slice in uses.values()], squeeze=False)
    names = sorted({name for by_slice in uses.values() for shares in by_slice.values() for name in shares}, key=_order)
    for axes, (rule, by_slice) in zip(panels[:, 0], uses.items(), strict=True):
        shares = np.array([[made.get(name, 0.0) for name in names] for made in by_slice.values()])
        heat_map(
            axes, shares, [[f"{100 * part:.0f}" if part >= 0.01 else "" for part in row] for row in shares], size=7
        )
        axes.set_yticks(range(len(by_slice)), list(by_slice), fontsize=7)
        axes.set_xticks(range(len(names)), [])
        axes.set_title(rule, fontsize=9, loc="left")
    panels[-1, 0].set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    return figure


def _order(name: str) -> tuple[int, ...]:
    kind, numbers = name.split("-")
    return (int(kind != "chain"), *(int(number) for number in numbers.split(".")))
