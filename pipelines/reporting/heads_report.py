"""How well the heads know what will be accepted, and what their rules are worth: on test positions of recorded texts, by setting.

metrics    of the calibrated head, of the same before calibration, and of baselines that know as much or less
policies   tokens per second by replay at this machine's prices: the head's rule, its argmax, the confidence rule, the best
           static length and the oracle; gains over the best static length, intervals by bootstrap over documents
"""

from typing import Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.names import HRAD
from pipelines.reporting.inputs import Inputs, Record, Section
from pipelines.reporting.intervals import known, percent, surely_above
from pipelines.reporting.plots import heat_map

FACTS = (
    "target",
    "feature_set",
    "decoding",
    "gamma",
    "classes",
    "rows",
    "documents",
    "class_shares",
    "best_epoch",
    "iterations",
)
METRICS = ("macro_auc", "macro_auc_interval", "accuracy", "macro_f1", "ece", "brier", "nll", "confusion", "reliability")
TARGETS = {"classes": "H-RAD", "length": "explicit length"}
BASELINES = {
    "head_argmax": "argmax rule",
    "majority": "majority class",
    "previous_label": "previous round's label",
    "draft_confidence": "draft confidence",
    "confidence": "confidence rule",
    "best_static": "best static γ",
    "oracle": "oracle",
}


class HeadsReport(Section):
    """Builds the record of ``quality.json`` from ``records`` of stage ``fit`` by predictor."""

    def __init__(self, records: dict[str, Record]) -> None:
        self.records = records

    @classmethod
    def read(cls, inputs: Inputs) -> Self | None:
        records = inputs.fitted("head")
        return cls(records) if records else None

    def quality(self) -> Record:
        """The heads, and which of them the page shows in full."""
        shown = HRAD if HRAD in self.records else next(iter(self.records))
        return {"shown": shown, "heads": {name: _head(record) for name, record in self.records.items()}}

    def figures(self, quality: Record, timing: Record) -> dict[str, Figure]:
        """Of the head that is shown: calibration and confusion, a panel for each sampling setting."""
        head = quality["heads"][quality["shown"]]
        parts = head["parts"]
        figures = {
            name: Figure(figsize=(4.4 * len(parts), 4.1), layout="constrained") for name in ("reliability", "confusion")
        }
        for place, (setting, part) in enumerate(parts.items(), 1):
            _reliability(figures["reliability"].add_subplot(1, len(parts), place), setting, part["metrics"])
            _confusion(
                figures["confusion"].add_subplot(1, len(parts), place), setting, part["metrics"], head["classes"]
            )
        return figures

    @staticmethod
    def sentences(quality: Record, timing: Record) -> list[str]:
        """What every head is worth in replay."""
        said = []
        for name, head in quality["heads"].items():
            gains = {setting: part["policies"]["head"]["gain"] for setting, part in head["parts"].items()}
            sure = [setting for setting, gain in gains.items() if surely_above(gain)]
            worth = ", ".join(f"{percent(gain)} at {setting}" for setting, gain in gains.items())
            verdict = f"surely pays at {', '.join(sure)}" if sure else "surely pays nowhere"
            said.append(f"{name}, replayed over the best static length: {worth}; it {verdict}.")
        return said


def _head(record: Record) -> Record:
    parts = {
        setting: {
            "metrics": {name: {key: made.get(key) for key in METRICS} for name, made in part["metrics"].items()},
            "policies": part["policies"],
            "static_length": part["static_length"],
        }
        for setting, part in record["parts"].items()
    }
    return {key: record.get(key) for key in FACTS} | {"parts": parts}


def rows(quality: Record) -> list[Record]:
    """Rows of the page's table: every head at every sampling setting, then what the shown one is compared with."""
    heads, shown = quality["heads"], quality["shown"]
    found = [
        _row(f"{TARGETS.get(head['target'], head['target'])}, {name}", setting, part, "head") | {"shown": name == shown}
        for name, head in heads.items()
        for setting, part in head["parts"].items()
    ]
    for setting, part in heads[shown]["parts"].items():
        compared = {
            name: text for name, text in BASELINES.items() if name in part["policies"] or name in part["metrics"]
        }
        found += [_row(text, setting, part, name) for name, text in compared.items()]
    return found


def _row(label: str, setting: str, part: Record, name: str) -> Record:
    metrics, policy = part["metrics"].get(name, {}), part["policies"].get(name)
    interval = metrics.get("macro_auc_interval")
    return {
        "name": label,
        "setting": setting,
        "shown": False,
        "auc": interval if known(interval) else None,
        **{key: metrics.get(key) for key in ("accuracy", "macro_f1", "ece")},
        "speed": None if policy is None else policy["tokens_per_second"],
        "gain": None if policy is None else policy["gain"],
        "static_length": part["static_length"] if name in ("head", "best_static") else None,
    }


def _reliability(axes: Axes, setting: str, metrics: Record) -> None:
    """Accuracy over confidence, before and after calibration."""
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, label in (("head_uncalibrated", "before"), ("head", "after")):
        bins = metrics[name]["reliability"]
        text = f"{label}, ECE {metrics[name]['ece']:.3f}"
        axes.plot([one["confidence"] for one in bins], [one["accuracy"] for one in bins], marker="o", label=text)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), title=f"Reliability, {setting}")
    axes.legend()


def _confusion(axes: Axes, setting: str, metrics: Record, classes: list[str]) -> None:
    """The calibrated head's confusion matrix, counts and shares of each true class."""
    counts = np.array(metrics["head"]["confusion"], float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    texts = [
        [f"{counts[at]:g}\n{shares[at]:.0%}" for at in ((i, j) for j in range(len(row)))]
        for i, row in enumerate(counts)
    ]
    heat_map(axes, shares, texts)
    axes.set_xticks(range(len(classes)), classes)
    axes.set_yticks(range(len(classes)), classes)
    axes.set(xlabel="predicted", ylabel="true", title=f"Accepted tokens, {setting}")
