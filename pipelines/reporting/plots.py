"""Plots of the report, drawn from ``timing.json`` and ``quality.json``. Okabe-Ito colours, told apart without colour vision."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.names import (
    CHAIN,
    CONFIDENCE,
    ENTROPY,
    HF_ASSISTED,
    HF_FORWARD,
    HF_PLAIN,
    HRAD,
    PLAIN,
    chain_gamma,
)
from pipelines.reporting.headline import arm_name
from pipelines.reporting.statistics import Interval
from predictors.rounds import PHASES

GREY, LIGHT_BLUE, BLUE, ORANGE, GREEN, RED, PURPLE = (
    "#8a8a8a",
    "#9ecbea",
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
)
WAIT = "#e6e6e6"
COLOURS = {PLAIN: "#5a5a5a", HF_FORWARD: GREY, HF_PLAIN: "#b5b5b5", HF_ASSISTED: PURPLE, ENTROPY: GREEN, HRAD: RED}
FAMILY_COLOURS = {CHAIN: BLUE, CONFIDENCE: ORANGE, **COLOURS}
PHASE_COLOURS = dict(zip((*PHASES, "rest"), (ORANGE, BLUE, GREEN, PURPLE, WAIT, "#c9c9c9"), strict=True))
TEMPERATURE_STYLES = ((BLUE, "o", "-"), (RED, "s", "--"), (GREEN, "^", ":"), (PURPLE, "D", "-."))
STYLE = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "legend.frameon": False,
}


def draw(function: Any, *arguments: Any) -> Figure:
    """Call a plotting function under the house style."""
    with matplotlib.rc_context(STYLE):
        figure: Figure = function(*arguments)
    return figure


def speedup_bars(timing: dict[str, Any]) -> Figure:
    """Speed-up of every arm over plain decoding, one panel per temperature."""
    rows = timing["temperatures"]
    height = 0.9 + 0.31 * max(len(row["arms"]) - 1 for row in rows)
    figure, panels = _panels(len(rows), width=5.0, height=height)
    for axes, row in zip(panels, rows, strict=True):
        arms = [arm for arm, made in row["arms"].items() if arm != PLAIN and made["speedup"]["value"] is not None]
        speedups = [row["arms"][arm]["speedup"] for arm in arms]
        colours = [_colour(arm, row["chosen"]) for arm in arms]
        _interval_bars(axes, speedups, colours)
        for place, (arm, speedup) in enumerate(zip(arms, speedups, strict=True)):
            weight = "bold" if arm in row["chosen"].values() or arm == HRAD else "normal"
            text = f"{speedup['value']:.2f}x"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(speedup["high"] + 0.03, place, text, va="center", fontsize=8.5, weight=weight, bbox=box)
        axes.axvline(1, color="#333333", linewidth=1)
        axes.set_yticks(range(len(arms)), [arm_name(arm) for arm in arms])
        axes.set(title=f"T = {row['temperature']:g}", xlabel="speed-up against plain decoding (x)", xlim=(0, None))
        axes.margins(x=0.12)
        axes.grid(axis="x", color="#e6e6e6")
    return figure


def static_sweep(timing: dict[str, Any]) -> Figure:
    """Speed-up over the static draft length, with the validation choice circled."""
    figure, (axes,) = _panels(1, width=6.4, height=3.6)
    for row, (colour, marker, line) in zip(timing["temperatures"], TEMPERATURE_STYLES, strict=False):
        by_gamma = {gamma: arm for arm in row["arms"] if (gamma := chain_gamma(arm)) is not None}
        gammas, arms = list(by_gamma), list(by_gamma.values())
        speedups = [row["arms"][arm]["speedup"] for arm in arms]
        values = [speedup["value"] for speedup in speedups]
        label = f"T = {row['temperature']:g}"
        axes.fill_between(gammas, [s["low"] for s in speedups], [s["high"] for s in speedups], color=colour, alpha=0.13)
        axes.plot(gammas, values, color=colour, marker=marker, linestyle=line, label=label)
        best = arms.index(row["chosen"][CHAIN])
        axes.plot(gammas[best], values[best], "o", markersize=15, fillstyle="none", color=colour)
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="static draft length γ (tokens)", ylabel="speed-up (x)", title="Static sweep on test prompts")
    axes.set_xticks(gammas)
    axes.grid(axis="y", color="#e6e6e6")
    axes.legend()
    return figure


def accepted_histogram(quality: dict[str, Any]) -> Figure:
    """Share of rounds by accepted tokens, for the longest static draft."""
    rows = quality["temperatures"]
    gamma, arm = max((gamma, name) for name in rows[0]["arms"] if (gamma := chain_gamma(name)) is not None)
    figure, (axes,) = _panels(1, width=6.4, height=3.4)
    width = 0.8 / len(rows)
    for index, (row, (colour, _, line)) in enumerate(zip(rows, TEMPERATURE_STYLES, strict=False)):
        if arm not in row["arms"]:
            continue
        counts = np.array(row["arms"][arm]["accepted_histogram"])
        places = np.arange(len(counts)) + (index - (len(rows) - 1) / 2) * width
        hatch = "" if line == "-" else "///"
        axes.bar(
            places,
            100 * counts / counts.sum(),
            width,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=f"T = {row['temperature']:g}",
        )
    axes.set_xticks(range(gamma + 1))
    axes.set(xlabel="accepted tokens in a round", ylabel="rounds (%)", title=f"Accepted length, {arm_name(arm)}")
    axes.grid(axis="y", color="#e6e6e6")
    axes.legend()
    return figure


def time_shares(timing: dict[str, Any]) -> Figure:
    """Where the time goes: share of wall-clock by phase, for the arms that keep a clock."""
    rows = timing["temperatures"]
    names = [PLAIN, *dict.fromkeys(row["chosen"][CHAIN] for row in rows)]
    names += dict.fromkeys(row["chosen"][CONFIDENCE] for row in rows if CONFIDENCE in row["chosen"])
    names += [name for name in (ENTROPY, HRAD) if any(name in row["arms"] for row in rows)]
    figure, panels = _panels(len(rows), width=5.0, height=1.3 + 0.34 * len(names))
    for axes, row in zip(panels, rows, strict=True):
        left = np.zeros(len(names))
        for phase in row["arms"][PLAIN]["time_shares"]:
            timed = [row["arms"].get(name, {}).get("time_shares") or {} for name in names]
            shares = 100 * np.array([made.get(phase, 0.0) for made in timed])
            axes.barh(range(len(names)), shares, left=left, color=PHASE_COLOURS[phase], edgecolor="white", label=phase)
            for place, (start, share) in enumerate(zip(left, shares, strict=True)):
                if share >= 6:
                    axes.text(start + share / 2, place, f"{share:.0f}", ha="center", va="center", fontsize=8.5)
            left += shares
        axes.invert_yaxis()
        axes.set_yticks(range(len(names)), [arm_name(name) for name in names])
        axes.set(title=f"T = {row['temperature']:g}", xlabel="share of wall-clock time (%)", xlim=(0, 100))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def gain_by_slice(timing: dict[str, Any]) -> Figure:
    """Gain of each controller over the best static setting by slice, pooled over temperatures."""
    groups = {**timing["slices"], "all": timing["pooled"]}
    controllers = [name for name in timing["pooled"] if name != CHAIN]
    figure, (axes,) = _panels(1, width=6.4, height=1.1 + 0.62 * len(groups))
    markers = dict(zip(controllers, "osD^v", strict=False))
    for index, name in enumerate(controllers):
        gains = [groups[group][name]["gain_over_best_static"] for group in groups]
        places = np.arange(len(groups)) + 0.2 * (index - (len(controllers) - 1) / 2)
        values, errors = _errors(gains, scale=100)
        label = arm_name(name) if name in COLOURS else name
        axes.errorbar(
            values, places, xerr=errors, fmt=markers[name], color=FAMILY_COLOURS[name], capsize=3, label=label
        )
    axes.axvline(0, color="#333333", linewidth=1)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set(xlabel="gain over the best static γ (%)", title="Gain by slice, temperatures pooled")
    axes.grid(axis="x", color="#e6e6e6")
    figure.legend(loc="outside lower center", ncols=len(controllers))
    return figure


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _interval_bars(axes: Axes, intervals: list[dict[str, float]], colours: list[str]) -> None:
    values, errors = _errors(intervals)
    axes.barh(range(len(values)), values, xerr=errors, color=colours, ecolor="#333333", capsize=2.5)
    axes.invert_yaxis()


def _errors(intervals: list[dict[str, float]], scale: float = 1) -> tuple[np.ndarray, np.ndarray]:
    values, low, high = (
        scale * np.array([interval[name] for interval in intervals], float) for name in ("value", "low", "high")
    )
    return values, np.maximum([values - low, high - values], 0)


def _colour(arm: str, chosen: dict[str, str]) -> str:
    if chain_gamma(arm) is not None:
        return BLUE if arm == chosen[CHAIN] else LIGHT_BLUE
    if arm.startswith(CONFIDENCE):
        return ORANGE if arm == chosen.get(CONFIDENCE) else "#f6d68a"
    return COLOURS.get(arm, GREY)


def gain_whiskers(
    panels: Sequence[tuple[str, Sequence[tuple[str, Interval, str]]]], label: str, row_inches: float
) -> Figure:
    """One panel for each (title, rows): a row is a name, its gain with its interval, and a colour; the first on top."""
    rows = max(len(some) for _, some in panels)
    figure = Figure(figsize=(5.4 * len(panels), 1.4 + row_inches * rows), layout="constrained")
    for axes, (title, some) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for place, (_, gain, colour) in enumerate(some):
            centre, low, high = (100 * (gain[name] or 0.0) for name in ("value", "low", "high"))
            errors = [[max(0.0, centre - low)], [max(0.0, high - centre)]]
            axes.errorbar(centre, place, xerr=errors, fmt="o", color=colour, markersize=4.5, capsize=2, linewidth=1)
        axes.axvline(0, color="#333333", linewidth=1)
        axes.set_yticks(range(len(some)), [name for name, _, _ in some])
        axes.set_ylim(len(some) - 0.5, -0.5)
        axes.set(xlabel=label, title=title)
        axes.grid(axis="x", color="#e6e6e6")
    return figure
