"""Plots of methods without a draft model: speed, by slice too, what a pass is made of, and what guesses cost and bring."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HUGGING_FACE, METHODS
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE

COLOURS = {CHAIN: GREY, CALIBRATED: BLUE, GIVEN: GREEN, HUGGING_FACE: PURPLE}


def self_drafting_speeds(timing: dict[str, Any]) -> Figure:
    """Speed-up over plain decoding of every arm, one panel per sampling setting."""
    settings = timing["settings"]
    figure = Figure(
        figsize=(5.4 * len(settings), 1.4 + 0.32 * max(len(row["arms"]) for row in settings)), layout="constrained"
    )
    for axes, row in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        arms = [arm for arm in row["arms"] if arm["family"] in COLOURS]
        for place, arm in enumerate(arms):
            _whisker(axes, place, arm["speedup"], COLOURS[arm["family"]])
        _named(axes, [arm["arm"] for arm in arms])
        axes.set(xlabel="speed-up over plain decoding", title=row["setting"])
    return figure


def self_drafting_slices(timing: dict[str, Any]) -> Figure:
    """The same by slice."""
    rows = timing["settings"]
    slices = list(rows[0]["slices"])
    figure = Figure(figsize=(3.0 * len(slices) + 1.5, 1.0 + 1.9 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(slices), squeeze=False, sharex="row")
    for row, axes_of_row in zip(rows, panels, strict=True):
        for name, axes in zip(slices, axes_of_row, strict=True):
            for place, arm in enumerate(row["slices"][name].values()):
                _whisker(axes, place, arm["speedup"], BLUE)
            _named(axes, list(row["slices"][name]) if axes is axes_of_row[0] else [""] * len(row["slices"][name]))
            axes.set_title(f"{name}, {row['setting']}", fontsize=9)
    figure.supxlabel("speed-up over plain decoding", fontsize=10)
    return figure


def self_drafting_passes(timing: dict[str, Any]) -> Figure:
    """What one pass takes: upkeep, the model's forward, the verdict."""
    settings = timing["settings"]
    figure = Figure(figsize=(5.4 * len(settings), 3.2), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(settings), squeeze=False)[0], settings, strict=True):
        arms = [arm for arm in row["arms"] if arm["milliseconds"] is not None]
        left = np.zeros(len(arms))
        for part, colour in (("forward", GREY), ("upkeep", BLUE), ("verdict", GREEN)):
            width = np.array([arm["milliseconds"][part] for arm in arms])
            axes.barh(range(len(arms)), width, left=left, color=colour, label=part)
            left += width
        _named(axes, [arm["arm"] for arm in arms])
        axes.set(xlabel="milliseconds a pass", title=row["setting"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def guesses_and_efficiency(quality: dict[str, Any]) -> Figure:
    """Tokens committed a pass over the tokens fed beside the newest one, every traced way, one panel per sampling setting."""
    names = sorted({row["setting"] for row in quality["ways"]})
    figure = Figure(figsize=(5.4 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for method, colour in zip(METHODS, (BLUE, GREEN, PURPLE), strict=True):
            rows = [row for row in quality["ways"] if row["setting"] == name and row["way"]["method"] == method]
            fed = [row["guessed"] + row["candidates"] for row in rows]
            sizes = [30 * row["speedup"]["value"] ** 3 for row in rows]
            axes.scatter(
                fed, [row["decoding_efficiency"] for row in rows], s=sizes, color=colour, alpha=0.6, label=method
            )
        axes.set(xlabel="guessed and candidate tokens a pass", ylabel="tokens committed a pass", title=name)
        axes.grid(color="#e6e6e6")
    axes.legend()
    return figure


def grid_and_efficiency(timing: dict[str, Any], quality: dict[str, Any]) -> Figure:
    """Measured speed-up over the tokens fed a pass beside the newest one, every arm, one panel per sampling setting."""
    figure = Figure(figsize=(6.4 * len(timing["settings"]), 4.2), layout="constrained")
    panels = figure.subplots(1, len(timing["settings"]), squeeze=False)[0]
    for axes, row in zip(panels, timing["settings"], strict=True):
        speeds = {arm["arm"]: arm["speedup"]["value"] for arm in row["arms"]}
        for count in quality["counts"]:
            if count["setting"] == row["setting"]:
                fed, speed = count["guessed"] + count["candidates"], speeds[count["arm"]]
                colour = (
                    GREEN
                    if count["arm"].startswith("lookahead")
                    else PURPLE
                    if count["arm"].startswith("self")
                    else BLUE
                )
                axes.plot(fed, speed, "o", color=colour, markersize=4)
                axes.annotate(count["arm"], (fed, speed), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.set(
            xlabel="guessed and candidate tokens a pass", ylabel="speed-up over plain decoding", title=row["setting"]
        )
        axes.grid(color="#e6e6e6")
    return figure


def _whisker(axes: Axes, place: int, value: dict[str, float], colour: str) -> None:
    if None in value.values():
        return
    errors = [[max(0.0, value["value"] - value["low"])], [max(0.0, value["high"] - value["value"])]]
    axes.errorbar(value["value"], place, xerr=errors, fmt="o", color=colour, markersize=4.5, capsize=2, linewidth=1)


def _named(axes: Axes, names: list[str]) -> None:
    """Rows from top to bottom, a line at plain decoding."""
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="#e6e6e6")
