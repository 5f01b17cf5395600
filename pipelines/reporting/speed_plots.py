"""Plots of the report's first tables: speeds, static lengths, gains by slice, accepted tokens, where the time goes."""

from typing import Any

import numpy as np
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
from pipelines.reporting.plots import (
    BLUE,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PHASE_COLOURS,
    PURPLE,
    RED,
    band,
    stacked,
    styles,
    whiskers,
)

COLOURS = {PLAIN: "#5a5a5a", HF_FORWARD: GREY, HF_PLAIN: "#b5b5b5", HF_ASSISTED: PURPLE, ENTROPY: GREEN, HRAD: RED}
FAMILY_COLOURS = {CHAIN: BLUE, CONFIDENCE: ORANGE, **COLOURS}


def speed_figures(quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
    """By name."""
    return {
        "speedup": speedups(timing),
        "sweep": static_sweep(timing),
        "slices": gain_by_slice(timing),
        "accepted": accepted_histogram(quality),
        "shares": time_shares(timing),
    }


def speedups(timing: dict[str, Any]) -> Figure:
    """Speed-up of every arm over plain decoding, one panel per sampling setting."""
    panels = [
        (
            row["setting"],
            [
                (arm_name(arm), [(made["speedup"], (_colour(arm, row["chosen"]), "o"))])
                for arm, made in row["arms"].items()
                if arm != PLAIN and made["speedup"]["value"] is not None
            ],
        )
        for row in timing["settings"]
    ]
    return whiskers(panels, "speed-up over plain decoding (x)", line=1, numbers="{:.2f}x")


def static_sweep(timing: dict[str, Any]) -> Figure:
    """Speed-up over the static draft length, with the validation choice circled."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    looks = styles([row["setting"] for row in timing["settings"]])
    for row in timing["settings"]:
        by_gamma = {
            gamma: row["arms"][arm]["speedup"] for arm in row["arms"] if (gamma := chain_gamma(arm)) is not None
        }
        band(axes, list(by_gamma), list(by_gamma.values()), looks[row["setting"]], row["setting"])
        best = chain_gamma(row["chosen"][CHAIN]) or 0
        ring: dict[str, Any] = {"markersize": 15, "fillstyle": "none", "color": looks[row["setting"]][0]}
        axes.plot(best, by_gamma[best]["value"], "o", **ring)
        axes.set_xticks(list(by_gamma))
    axes.axhline(1, color="#333333", linewidth=1)
    axes.set(xlabel="static draft length γ (tokens)", ylabel="speed-up (x)", title="Static sweep on test prompts")
    axes.legend()
    return figure


def gain_by_slice(timing: dict[str, Any]) -> Figure:
    """Gain of each controller over the best static setting by slice, pooled over sampling settings."""
    groups = {**timing["slices"], "all": timing["pooled"]}
    controllers = [name for name in timing["pooled"] if name != CHAIN]
    looks = {name: (FAMILY_COLOURS[name], marker) for name, marker in zip(controllers, "osD^v", strict=False)}
    rows = [(group, [(made[name]["gain"], looks[name]) for name in controllers]) for group, made in groups.items()]
    legend = {arm_name(name) if name in COLOURS else name: look for name, look in looks.items()}
    return whiskers([("Gain by slice", rows)], "gain over the best static γ", line=0, percent=True, legend=legend)


def accepted_histogram(quality: dict[str, Any]) -> Figure:
    """Share of rounds by accepted tokens, for the longest static draft."""
    rows = quality["settings"]
    gamma, arm = max((gamma, name) for name in rows[0]["arms"] if (gamma := chain_gamma(name)) is not None)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots()
    looks, width = styles([row["setting"] for row in rows]), 0.8 / len(rows)
    for index, row in enumerate(rows):
        if arm in row["arms"]:
            counts = np.array(row["arms"][arm]["accepted_histogram"])
            places = np.arange(len(counts)) + (index - (len(rows) - 1) / 2) * width
            axes.bar(places, 100 * counts / counts.sum(), width, color=looks[row["setting"]][0], label=row["setting"])
    axes.set_xticks(range(gamma + 1))
    axes.set(xlabel="accepted tokens in a round", ylabel="rounds (%)", title=f"Accepted length, {arm_name(arm)}")
    axes.grid(axis="y", color="#e6e6e6")
    axes.legend()
    return figure


def time_shares(timing: dict[str, Any]) -> Figure:
    """Where the time goes: share of wall-clock by phase, for the arms that keep a clock."""
    rows = timing["settings"]
    names = [PLAIN, *dict.fromkeys(row["chosen"][CHAIN] for row in rows)]
    names += dict.fromkeys(row["chosen"][CONFIDENCE] for row in rows if CONFIDENCE in row["chosen"])
    names += [name for name in (ENTROPY, HRAD) if any(name in row["arms"] for row in rows)]
    shares = {
        row["setting"]: {arm_name(name): row["arms"].get(name, {}).get("time_shares") or {} for name in names}
        for row in rows
    }
    parts = dict.fromkeys(part for part in rows[0]["arms"][PLAIN]["time_shares"])
    panels = [(where, {name: _hundredfold(made) for name, made in arms.items()}) for where, arms in shares.items()]
    return stacked(panels, {part: PHASE_COLOURS[part] for part in parts}, "share of wall-clock time (%)")


def _hundredfold(shares: dict[str, float]) -> dict[str, float]:
    return {part: 100 * share for part, share in shares.items()}


def _colour(arm: str, chosen: dict[str, str]) -> str:
    if chain_gamma(arm) is not None:
        return BLUE if arm == chosen[CHAIN] else LIGHT_BLUE
    if arm.startswith(CONFIDENCE):
        return ORANGE if arm == chosen.get(CONFIDENCE) else "#f6d68a"
    return COLOURS.get(arm, GREY)
