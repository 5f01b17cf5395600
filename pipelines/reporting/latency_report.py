"""What the report says of a latency profile: cost ratios, the price of wider passes, the compact forward's gain, predictions."""

from collections.abc import Mapping
from typing import Any, Self

from matplotlib.figure import Figure

from pipelines.reporting.bars import NUMBER, SHARE, bar_row
from pipelines.reporting.inputs import Inputs
from pipelines.reporting.latency_branching import hidden_gammas
from pipelines.reporting.latency_plots import latency_figure
from pipelines.reporting.measured_folder import Measured
from pipelines.reporting.prediction_plots import prediction_figure
from pipelines.reporting.prediction_report import PredictionReport
from predictors.latency import Latency, LatencyProfile
from predictors.latency.soundness import noise_warning

MODELS = ("draft", "target")  # tables that have a twin over Hugging Face's own forward
DRAFT_STEP_BAR, ERROR_BAR, RANK_BAR = 1.8, 0.10, 0.9


class LatencyReport:
    """Builds the record; predictions are compared with the measurement on the same machine."""

    def __init__(self, measured: Measured, profile: LatencyProfile) -> None:
        self.measured = measured
        self.profile = profile
        self.prediction = PredictionReport(measured, profile)

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        return None if inputs.profile is None else cls(inputs.measured, inputs.profile)

    def quality(self) -> dict[str, Any]:
        """Nothing: all of it is time."""
        return {}

    def figures(self, quality: dict[str, Any], timing: dict[str, Any]) -> dict[str, Figure]:
        """The profile, and predicted against measured speeds."""
        return {"latency": latency_figure(self.profile), "prediction": prediction_figure(timing["prediction"])}

    def timing(self) -> dict[str, Any]:
        """``contexts``; by context ``cost_ratio``, ``draft_step_ms`` and ``target_pass_ms``; ``verify_ratio`` by tokens and
        context; ``compact_gain`` by model, size of the pass and context (empty where only one forward was timed);
        ``beside``, alike: a pass while the other model works over one alone (empty where that was not timed); ``exchange_ms``
        by tokens submitted; ``hidden_gamma`` by way of running both models and context; ``warning``, what to say of a noisy
        profile (``None``: nothing), and its ``noise``; ``prediction``; ``mismatches``, sentences on what the profile and the
        decodes were not measured alike in; ``bars``."""
        profile, target = self.profile, self.profile.tables["target"]
        contexts = list(target.axes["context"])
        prediction = self.prediction.build()
        gains = {name: self._gains(name) for name in MODELS if f"{name}_hugging_face" in profile.tables}
        return {
            "contexts": contexts,
            "cost_ratio": [profile.cost_ratio(context) for context in contexts],
            "draft_step_ms": [_milliseconds(profile.latency("draft", rows=1, context=context)) for context in contexts],
            "target_pass_ms": [
                _milliseconds(profile.latency("target", tokens=1, context=context)) for context in contexts
            ],
            "verify_ratio": {
                str(tokens): [profile.verify_ratio(tokens, context) for context in contexts]
                for tokens in target.axes["tokens"]
            },
            "compact_gain": gains,
            "beside": {name: self._slowdowns(name) for name in MODELS if f"beside_{name}" in profile.tables},
            "exchange_ms": self._exchange() if "exchange" in profile.tables else {},
            "hidden_gamma": hidden_gammas(profile, contexts),
            "warning": noise_warning(profile),
            "noise": list(profile.noise),
            "prediction": prediction,
            "provenance": dict(profile.provenance),
            "mismatches": _mismatches(profile.provenance, self.measured.origin),
            "bars": [*_step_bars(gains, contexts), *_prediction_bars(prediction["summary"]["measured"])],
        }

    def _gains(self, name: str) -> dict[str, list[dict[str, float]]]:
        """By size of the pass: time over Hugging Face's forward over ours at each context; the range from the quartiles."""
        return self._over(f"{name}_hugging_face", name)

    def _slowdowns(self, name: str) -> dict[str, list[dict[str, float]]]:
        """By size of the pass: time while the other model works over time alone, alike."""
        return self._over(f"beside_{name}", name)

    def _exchange(self) -> dict[str, dict[str, float]]:
        table = self.profile.tables["exchange"]
        return {str(count): _milliseconds(table.at(submitted=count)) for count in table.axes["submitted"]}

    def _over(self, slow: str, fast: str) -> dict[str, list[dict[str, float]]]:
        twin = self.profile.tables[slow]
        size, _ = twin.axes
        places = {
            count: [{size: count, "context": context} for context in twin.axes["context"]] for count in twin.axes[size]
        }
        return {
            str(count): [_ratio(twin.at(**place), self.profile.latency(fast, **place)) for place in row]
            for count, row in places.items()
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


def _step_bars(gains: dict[str, Any], contexts: list[int]) -> list[dict[str, Any]]:
    steps = gains.get("draft", {}).get("1", [])
    return [
        bar_row(f"draft step, HF / compact, context {context}", gain, DRAFT_STEP_BAR)
        for context, gain in zip(contexts, steps, strict=False)
    ]


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


def _ratio(slow: Latency, fast: Latency) -> dict[str, float]:
    return {"value": slow.seconds / fast.seconds, "low": slow.low / fast.high, "high": slow.high / fast.low}


def _milliseconds(latency: Latency) -> dict[str, float]:
    return {"value": 1e3 * latency.seconds, "low": 1e3 * latency.low, "high": 1e3 * latency.high}
