"""Plots of stop rules: what each is worth on the clock, and how far a model's chances can be believed."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.names import CHAIN, CONFIDENCE, CONFIG, DYNAMIC, FORK, RULE
from pipelines.reporting.intervals import known
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, whiskers

COLOURS = {CHAIN: GREY, CONFIDENCE: GREEN, RULE: BLUE, FORK: GREY, CONFIG: GREY, DYNAMIC: PURPLE}


def stop_figures(quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
    """By name."""
    figures = {"stops": stop_gains(timing)}
    return figures | ({"places": calibration_by_place(quality)} if quality["models"] else {})


def stop_gains(timing: dict[str, Any]) -> Figure:
    """Gain of every rule over the best static chain, one panel per sampling setting."""
    panels = [
        (
            row["setting"],
            [
                (arm["arm"], [(arm["gain"], (COLOURS[arm["family"]], "o"))])
                for arm in row["arms"]
                if arm["family"] in COLOURS and known(arm["gain"])
            ],
        )
        for row in timing["settings"]
    ]
    return whiskers(panels, "gain over the best static chain", line=0, percent=True)


def calibration_by_place(quality: dict[str, Any]) -> Figure:
    """By position in the draft: share of drafts that survive so far, predicted (product of chances) and observed; then how well
    each position's own chances are calibrated (ECE) and how well they rank (AUROC)."""
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
        axes.set_xlabel("position in the draft")
        axes.grid(color="#e6e6e6")
    alive.legend()
    return figure
