"""Plot of predicted against measured tokens/s."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pipelines.measuring.names import PLAIN, chain_gamma
from pipelines.reporting.plots import styles

BAND = 0.10  # relative, drawn around equality


def prediction_figure(prediction: dict[str, Any]) -> Figure:
    """Every static setting: measured tokens/s across, predicted ones up with the range of the latencies' quartiles."""
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axes = figure.subplots()
    looks = styles(sorted({row["setting"] for row in prediction["settings"]}))
    for label, (colour, marker) in looks.items():
        rows = [row for row in prediction["settings"] if row["setting"] == label]
        measured = [row["measured"] for row in rows]
        predicted = [row["predicted"] for row in rows]
        values = np.array([[p["value"] - p["low"], p["high"] - p["value"]] for p in predicted]).T
        heights = [p["value"] for p in predicted]
        axes.errorbar(measured, heights, yerr=values, fmt=marker, color=colour, markersize=5, capsize=2, label=label)
        for row, height in zip(rows, heights, strict=True):
            name = "plain" if row["arm"] == PLAIN else f"γ={chain_gamma(row['arm'])}"
            place = (row["measured"], height)
            axes.annotate(name, place, textcoords="offset points", xytext=(6, -9), fontsize=7.5, color=colour)
    _equality(axes, [row["measured"] for row in prediction["settings"]])
    axes.set(xlabel="measured tokens/s", ylabel="predicted tokens/s", title="Static settings, predicted and measured")
    axes.grid(color="#e6e6e6")
    axes.legend(loc="upper left")
    return figure


def _equality(axes: Any, measured: list[float]) -> None:
    ends = np.array([0.92 * min(measured), 1.08 * max(measured)])
    axes.plot(ends, ends, color="#333333", linewidth=1)
    axes.fill_between(ends, (1 - BAND) * ends, (1 + BAND) * ends, color="#333333", alpha=0.06, linewidth=0)
