"""Plots of stop rules: what each is worth on the clock, and whether the product of chances along a draft can be believed."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.stopping.names import CHAIN, CONFIDENCE, CONFIG, DYNAMIC, FORK, RULE
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE

COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, FORK: GREY, CONFIG: GREY, DYNAMIC: PURPLE}


def stop_gains(timing: dict[str, Any]) -> Figure:
    """Gain of every rule over the best static chain, one panel per sampling setting."""
    settings = timing["settings"]
    rows = max(len(row["arms"]) for row in settings)
    figure = Figure(figsize=(5.4 * len(settings), 1.4 + 0.32 * rows), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for axes, row in zip(panels, settings, strict=True):
        arms = [arm for arm in row["arms"] if arm["family"] in COLOURS]
        for place, arm in enumerate(arms):
            centre, low, high = (100 * arm["gain"][name] for name in ("value", "low", "high"))
            errors = [[max(0.0, centre - low)], [max(0.0, high - centre)]]
            colour = COLOURS[arm["family"]]
            axes.errorbar(centre, place, xerr=errors, fmt="o", color=colour, markersize=4.5, capsize=2, linewidth=1)
        axes.axvline(0, color="#333333", linewidth=1)
        axes.set_yticks(range(len(arms)), [arm["arm"] for arm in arms])
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set(xlabel="gain over the best static chain, %", title=row["setting"])
        axes.grid(axis="x", color="#e6e6e6")
    return figure


def product_bias(quality: dict[str, Any]) -> Figure:
    """Mean predicted share of drafts that survive to each place, beside the observed one."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, model in enumerate(quality["models"]):
        bias = model["product_bias"]
        places = np.arange(1, len(bias["predicted"]) + 1)
        if not number:
            axes.plot(places, bias["observed"], color="#333333", linewidth=2, label="observed")
        axes.plot(places, bias["predicted"], marker="o", markersize=3, linewidth=1, label=model["model"])
    axes.set(xlabel="place in the draft", ylabel="share of drafts alive", ylim=(0, 1))
    axes.grid(color="#e6e6e6")
    axes.legend()
    return figure
