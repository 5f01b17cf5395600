"""Plots of a calibration record: reliability diagram and confusion matrix."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from predictors.network import CLASSES


def reliability_figure(metrics: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy over confidence, before and after calibration. ``metrics`` is ``test.metrics`` of the record."""
    figure = Figure(figsize=(4.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, label in (("head_uncalibrated", "before"), ("head", "after")):
        bins = metrics[name]["reliability"]
        text = f"{label}, ECE {metrics[name]['ece']:.3f}"
        axes.plot([b["confidence"] for b in bins], [b["accuracy"] for b in bins], marker="o", label=text)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), title="Reliability on test rows")
    axes.legend()
    return figure


def confusion_figure(metrics: dict[str, dict[str, Any]], classes: Sequence[str] = CLASSES) -> Figure:
    """The calibrated head's confusion matrix, counts and shares of each true class."""
    confusion = metrics["head"]["confusion"]
    figure = Figure(figsize=(4.2, 4.0), layout="constrained")
    axes = figure.subplots()
    shares = [[count / max(sum(row), 1) for count in row] for row in confusion]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(confusion):
        for j, count in enumerate(row):
            colour = "white" if shares[i][j] > 0.6 else "black"
            axes.text(j, i, f"{count}\n{shares[i][j]:.0%}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.set(xlabel="predicted", ylabel="true", title="Accepted tokens of a draft, test rows")
    return figure
