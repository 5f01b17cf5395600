"""Plots of the comparison of verification rules."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.verifiers.names import AS_DRAFTED
from pipelines.reporting.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, band, styles, whiskers

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
    """Acceptance rate of the per-node solvers by depth for a fixed number of draws and as drafted, and the distributions'
    distance."""
    rows = quality["acceptance"]
    fixed = max(row["draws"] for row in rows)
    figure = Figure(figsize=(11.5, 3.6), layout="constrained")
    *panels, apart = figure.subplots(1, 3)
    for axes, (draws, title) in zip(
        panels, ((fixed, f"{fixed} draws at every node"), (AS_DRAFTED, "As drafted")), strict=True
    ):
        for solver, look in SOLVER_STYLES.items():
            _by_depth(axes, rows, solver, draws, "rate", look, solver)
        axes.set(xlabel="depth of the node", ylabel="acceptance rate", title=title, ylim=(0, 1))
    _by_depth(apart, rows, "nss", AS_DRAFTED, "distance", ("#333333", "o"), "L1 distance")
    apart.set(xlabel="depth of the node", ylabel="‖p − q‖₁", title="Distance of the distributions", ylim=(0, None))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _by_rule(groups: list[dict[str, Any]], key: str, label: str, title: str, line: float | None = None) -> Figure:
    looks = styles([group["setting"] for group in groups])
    rows = [
        (made[0]["name"], [(row[key], look) for row, look in zip(made, looks.values(), strict=True)])
        for made in zip(*(group["rules"] for group in groups), strict=True)
    ]
    return whiskers([(title, rows)], label, line=line, legend=looks)


def _by_depth(
    axes: Axes, rows: list[dict[str, Any]], solver: str, draws: int, key: str, look: tuple[str, str], label: str
) -> None:
    own = [row for row in rows if (row["solver"], row["draws"]) == (solver, draws)]
    if own:
        band(axes, [row["depth"] for row in own], [row[key] for row in own], look, label)
        axes.set_xticks([row["depth"] for row in own])
