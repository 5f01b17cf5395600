"""What the report says of a latency profile: cost ratios, the price of wider passes, the compact forward's gain, predictions."""

from collections.abc import Mapping
from typing import Any, Self

from matplotlib.figure import Figure

from pipelines.reporting.bars import NUMBER, SHARE, bar_row
from pipelines.reporting.inputs import Inputs, Section
from pipelines.reporting.latency_plots import latency_figure
from pipelines.reporting.latency_table import latency_table
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.prediction_plots import prediction_figure
from pipelines.reporting.prediction_report import PredictionReport
from pipelines.reporting.statistics import Interval
from predictors.latency import LatencyProfile
from predictors.latency.soundness import noise_warning

DRAFT_STEP_BAR, ERROR_BAR, RANK_BAR = 1.8, 0.10, 0.9


class LatencyReport(Section):
    """Builds the record; predictions are compared with the measurement on the same machine."""

    def __init__(self, measured: Measured, profile: LatencyProfile) -> None:
        self.measured = measured
        self.profile = profile
        self.prediction = PredictionReport(measured, profile)

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        return None if inputs.profile is None else cls(inputs.measured, inputs.profile)

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """The profile, and predicted against measured speeds."""
        return {"latency": latency_figure(self.profile), "prediction": prediction_figure(timing["prediction"])}

    def timing(self) -> dict[str, Any]:
        """The profile as ``text``; ``warning``, what to say of a noisy
        profile (``None``: nothing), and its ``noise``; ``prediction``; ``mismatches``, sentences on what the profile and the
        decodes were not measured alike in; ``bars``."""
        profile, prediction = self.profile, self.prediction.build()
        return {
            "text": latency_table(profile),
            "warning": noise_warning(profile),
            "noise": list(profile.noise),
            "prediction": prediction,
            "provenance": dict(profile.provenance),
            "mismatches": _mismatches(profile.provenance, self.measured.origin),
            "bars": [*_step_bars(profile), *_prediction_bars(prediction["summary"])],
        }


def _mismatches(profile: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    ours, theirs = _conditions(profile), _conditions(measured)
    pairs = {field: (ours.get(field, "none"), theirs.get(field, "none")) for field in ours | theirs}
    return [
        f"the latency profile was measured with {field} {mine}, the decodes with {other}"
        for field, (mine, other) in pairs.items()
        if mine != other
    ]


def _conditions(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Number format and forward of each model, and threads, by name."""
    models = {f"{name} {field}": value for name, model in origin["models"].items() for field, value in model.items()}
    return models | {"threads": origin["threads"]}


def _step_bars(profile: LatencyProfile) -> list[dict[str, Any]]:
    """A draft step by Hugging Face's forward over ours at each context; the range from the quartiles."""
    twin = profile.tables.get("draft_hugging_face")
    if twin is None:
        return []
    rows = []
    for context in twin.axes["context"]:
        slow, fast = twin.at(rows=1, context=context), profile.latency("draft", rows=1, context=context)
        ratio: Interval = {
            "value": slow.seconds / fast.seconds,
            "low": slow.low / fast.high,
            "high": slow.high / fast.low,
        }
        rows.append(bar_row(f"draft step, HF / compact, context {context}", ratio, DRAFT_STEP_BAR))
    return rows


def _prediction_bars(summary: dict[str, Any]) -> list[dict[str, Any]]:
    def alone(value: float) -> dict[str, float | None]:
        return {"value": value, "low": None, "high": None}

    error, rank = alone(summary["median_error"]), alone(summary["spearman"])
    speedup = alone(summary["median_speedup_error"])
    return [
        bar_row("predicted tokens/s of static settings, median error", error, ERROR_BAR, SHARE, at_most=True),
        bar_row(
            "predicted speed-up of static drafts over plain, median error", speedup, ERROR_BAR, SHARE, at_most=True
        ),
        bar_row("their ranking, Spearman", rank, RANK_BAR, NUMBER),
    ]
