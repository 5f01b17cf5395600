"""Plots of the delayed-tree selectors: what choosing is worth by rule, and what is chosen where."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.reporting.plots import BLUE, GREEN, GREY


def gains_by_rule(quality: dict[str, Any], timing: dict[str, Any]) -> Figure:
    """Gain over each rule's best static tree: the selector's, exact and on the clock, and a perfect choice's at least."""
    rules = quality["rules"]
    figure = Figure(figsize=(8.4, 1.6 + 0.4 * len(rules)), layout="constrained")
    axes = figure.subplots()
    marks = (
        ("selector, exact labels", BLUE, "o", [row["gain"] for row in rules]),
        ("selector, on the clock", GREEN, "s", [row["gain"] for row in timing["rules"]]),
        ("perfect choice, lower bound", GREY, "D", [row["oracle_gain"] for row in rules]),
    )
    for index, (label, colour, marker, gains) in enumerate(marks):
        known = [place for place, gain in enumerate(gains) if gain is not None]
        places = np.array(known) + 0.22 * (index - 1)
        centre, low, high = (
            100 * np.array([gains[place][name] for place in known], float) for name in ("value", "low", "high")
        )
        errors = np.maximum([centre - low, high - centre], 0)
        axes.errorbar(
            centre, places, xerr=errors, fmt=marker, color=colour, markersize=4.5, capsize=2, linewidth=1, label=label
        )
    axes.axvline(0, color="#333333", linewidth=1)
    axes.set_yticks(range(len(rules)), [row["rule"] for row in rules])
    axes.set_ylim(len(rules) - 0.5, -0.5)
    axes.set(xlabel="gain over the rule's best static tree, %")
    axes.grid(axis="x", color="#e6e6e6")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def choices_by_slice(quality: dict[str, Any]) -> Figure:
    """Share of every action among a selector's choices on held-out roots, one panel per rule, one row per slice."""
    uses = quality["uses"]
    figure = Figure(
        figsize=(11.5, 1.2 + 0.28 * sum(len(by_slice) + 2 for by_slice in uses.values())), layout="constrained"
    )
    panels = figure.subplots(len(uses), 1, height_ratios=[len(by_slice) for by_slice in uses.values()], squeeze=False)
    names = sorted({name for by_slice in uses.values() for shares in by_slice.values() for name in shares}, key=_order)
    for axes, (rule, by_slice) in zip(panels[:, 0], uses.items(), strict=True):
        shares = np.array([[100 * by_slice[slice_].get(name, 0.0) for name in names] for slice_ in by_slice])
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        for row, column in np.ndindex(*shares.shape):
            if shares[row, column] >= 1:
                colour = "white" if shares[row, column] > 60 else "black"
                axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=7, color=colour)
        axes.set_yticks(range(len(by_slice)), list(by_slice), fontsize=7)
        axes.set_xticks(range(len(names)), [])
        axes.set_title(rule, fontsize=9, loc="left")
    panels[-1, 0].set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    return figure


def _order(name: str) -> tuple[int, ...]:
    kind, numbers = name.split("-")
    return (int(kind != "chain"), *(int(number) for number in numbers.split(".")))
