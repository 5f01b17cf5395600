"""Plots of stop rules: what each is worth on the clock, and how far a model's chances can be believed."""

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


def calibration_by_place(quality: dict[str, Any]) -> Figure:
    """By place in the draft: share of drafts that survive so far, predicted (product of chances) and observed; then how well each
    place's own chances are calibrated (ECE) and how well they rank (AUROC)."""
    figure = Figure(figsize=(12.6, 3.6), layout="constrained")
    alive, calibrated, ranked = figure.subplots(1, 3)
    for number, model in enumerate(quality["models"]):
        bias = model["product_bias"]
        places = np.arange(1, len(bias["predicted"]) + 1)
        if not number:
            alive.plot(places, bias["observed"], color="#333333", linewidth=2, label="observed")
        line = {"marker": "o", "markersize": 3, "linewidth": 1, "label": model["model"]}
        alive.plot(places, bias["predicted"], **line)
        named = {int(place) + 1: row for place, row in model["tokens"].items() if place != "all"}
        tokens = dict(sorted(named.items()))  # a record's keys are sorted as text
        for axes, name in ((calibrated, "ece"), (ranked, "auroc")):
            axes.plot(list(tokens), [np.nan if row[name] is None else row[name] for row in tokens.values()], **line)
    alive.set(ylabel="share of drafts alive", ylim=(0, 1))
    calibrated.set(ylabel="ECE of tested tokens", ylim=(0, None))
    ranked.set(ylabel="AUROC of tested tokens")
    for axes in (alive, calibrated, ranked):
        axes.set_xlabel("place in the draft")
        axes.grid(color="#e6e6e6")
    alive.legend()
    return figure
