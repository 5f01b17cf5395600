"""Plots of methods without a draft model: speed, by slice too, what a pass is made of, and what guesses cost and bring."""

from typing import Any

from matplotlib.figure import Figure

from pipelines.measuring.names import CALIBRATED, CHAIN, GIVEN, HUGGING_FACE, METHODS
from pipelines.reporting.plots import BLUE, GREEN, GREY, PURPLE, stacked, whiskers

LABEL = "speed-up over plain decoding"
ARM_COLOURS = {"lookahead": GREEN, "self": PURPLE}
COLOURS = {CHAIN: GREY, CALIBRATED: BLUE, GIVEN: GREEN, HUGGING_FACE: PURPLE}


def self_drafting_figures(quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
    """By name."""
    figures = {
        "self_drafting": self_drafting_speeds(timing),
        "self_drafting_slices": self_drafting_slices(timing),
        "self_drafting_passes": self_drafting_passes(timing),
    }
    return figures | ({"guesses": guesses_and_efficiency(quality)} if quality["ways"] else {})


def self_drafting_speeds(timing: dict[str, Any]) -> Figure:
    """Speed-up over plain decoding of every arm, one panel per sampling setting."""
    panels = [
        (row["setting"], [(arm["arm"], [(arm["speedup"], (COLOURS[arm["family"]], "o"))]) for arm in _shown(row)])
        for row in timing["settings"]
    ]
    return whiskers(panels, LABEL, line=1)


def self_drafting_slices(timing: dict[str, Any]) -> Figure:
    """The same by slice."""
    panels = [
        (f"{name}, {row['setting']}", [(arm, [(made["speedup"], (BLUE, "o"))]) for arm, made in arms.items()])
        for row in timing["settings"]
        for name, arms in row["slices"].items()
    ]
    return whiskers(panels, LABEL, line=1, columns=len(timing["settings"][0]["slices"]))


def self_drafting_passes(timing: dict[str, Any]) -> Figure:
    """What one pass takes: upkeep, the model's forward, the verdict."""
    panels = [
        (row["setting"], {arm["arm"]: arm["milliseconds"] for arm in row["arms"] if arm["milliseconds"] is not None})
        for row in timing["settings"]
    ]
    return stacked(panels, {"forward": GREY, "upkeep": BLUE, "verdict": GREEN}, "milliseconds a pass")


def _shown(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [arm for arm in row["arms"] if arm["family"] in COLOURS]


def guesses_and_efficiency(quality: dict[str, Any]) -> Figure:
    """Tokens committed a pass over the tokens fed besides the newest one, every traced way, one panel per sampling setting."""
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
    """Measured speed-up over the tokens fed a pass besides the newest one, every arm, one panel per sampling setting."""
    figure = Figure(figsize=(6.4 * len(timing["settings"]), 4.2), layout="constrained")
    panels = figure.subplots(1, len(timing["settings"]), squeeze=False)[0]
    for axes, row in zip(panels, timing["settings"], strict=True):
        speeds = {arm["arm"]: arm["speedup"]["value"] for arm in row["arms"]}
        for count in quality["counts"]:
            if count["setting"] == row["setting"]:
                fed, speed = count["guessed"] + count["candidates"], speeds[count["arm"]]
                colour = next((own for name, own in ARM_COLOURS.items() if count["arm"].startswith(name)), BLUE)
                axes.plot(fed, speed, "o", color=colour, markersize=4)
                axes.annotate(count["arm"], (fed, speed), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.axhline(1, color="#333333", linewidth=1)
        axes.set(
            xlabel="guessed and candidate tokens a pass", ylabel="speed-up over plain decoding", title=row["setting"]
        )
        axes.grid(color="#e6e6e6")
    return figure
