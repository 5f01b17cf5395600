"""Plots of the comparison of verification rules."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.verifiers.names import AS_DRAFTED
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED

SETTING_STYLES = (
    (BLUE, "o"),
    (RED, "s"),
    (GREEN, "^"),
    (PURPLE, "D"),
    (ORANGE, "v"),
    (GREY, "P"),
    ("#56b4e9", "X"),
    ("#7a4a1e", "*"),
)
SOLVER_STYLES = {
    "nss": (GREY, "v"),
    "naive_tree": (ORANGE, "o"),
    "specinfer": (BLUE, "s"),
    "spectr": (GREEN, "^"),
    "khisti": (PURPLE, "D"),
}


def block_efficiency_by_rule(quality: dict[str, Any]) -> Figure:
    """Exact block efficiency of every rule at its best shape, one mark per sampling setting."""
    return _by_rule(quality["settings"], "expected", "block efficiency (tokens per target pass)", "Exact expectation")


def speed_by_rule(timing: dict[str, Any]) -> Figure:
    """Speed-up over plain decoding of every rule at its fastest shape."""
    return _by_rule(timing["settings"], "speedup", "speed-up against plain decoding (x)", "Decoding", line=1.0)


def acceptance_by_depth(quality: dict[str, Any]) -> Figure:
    """Acceptance rate of the per-node solvers by depth for a fixed number of draws and as drafted, and the laws' distance."""
    rows = quality["acceptance"]
    fixed = max(row["draws"] for row in rows)
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    panels = list(figure.subplots(1, 3))
    for axes, draws, title in zip(
        panels, (fixed, AS_DRAFTED), (f"{fixed} draws at every node", "As drafted"), strict=False
    ):
        for solver, (colour, marker) in SOLVER_STYLES.items():
            part = [row for row in rows if row["solver"] == solver and row["draws"] == draws]
            _band(axes, part, "rate", colour, marker, solver)
        axes.set(xlabel="depth of the node", ylabel="acceptance rate", title=title, ylim=(0, 1))
    own = [row for row in rows if row["solver"] == "nss" and row["draws"] == AS_DRAFTED]
    _band(panels[2], own, "distance", "#333333", "o", "L1 distance")
    panels[2].set(xlabel="depth of the node", ylabel="‖p − q‖₁", title="Distance of the laws", ylim=(0, None))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _by_rule(groups: list[dict[str, Any]], key: str, label: str, title: str, line: float | None = None) -> Figure:
    names = [row["name"] for row in groups[0]["rules"]]
    figure = Figure(figsize=(6.6, 1.5 + 0.34 * len(names)), layout="constrained")
    axes = figure.subplots()
    for index, (group, (colour, marker)) in enumerate(zip(groups, _styles(len(groups)), strict=True)):
        values = [row[key] for row in group["rules"]]
        places = np.arange(len(names)) + 0.6 * ((index + 0.5) / len(groups) - 0.5)
        centre, low, high = (np.array([value[name] for value in values], float) for name in ("value", "low", "high"))
        errors = np.maximum([centre - low, high - centre], 0)
        style: dict[str, Any] = {"color": colour, "fmt": marker, "markersize": 4.5, "capsize": 2, "linewidth": 1}
        axes.errorbar(centre, places, xerr=errors, label=group["setting"], **style)
    if line is not None:
        axes.axvline(line, color="#333333", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set(xlabel=label, title=title)
    axes.grid(axis="x", color="#e6e6e6")
    figure.legend(loc="outside lower center", ncols=min(4, len(groups)))
    return figure


def _styles(count: int) -> list[tuple[str, str]]:
    return [SETTING_STYLES[index % len(SETTING_STYLES)] for index in range(count)]


def _band(axes: Axes, rows: list[dict[str, Any]], key: str, colour: str, marker: str, label: str) -> None:
    if not rows:
        return
    depths = [row["depth"] for row in rows]
    value, low, high = (np.array([row[key][name] for row in rows], float) for name in ("value", "low", "high"))
    axes.fill_between(depths, low, high, color=colour, alpha=0.13)
    axes.plot(depths, value, color=colour, marker=marker, label=label)
    axes.set_xticks(depths)
    axes.grid(axis="y", color="#e6e6e6")
