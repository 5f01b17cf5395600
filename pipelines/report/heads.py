"""Section ``heads``: how well the heads know what will be accepted, and what their rules are worth, on test positions.

metrics    of the calibrated head, of the same before calibration, and of baselines that know as much or less
policies   tokens per second by replay at this machine's prices: the head's rule, its argmax, the confidence rule, the best
           static length and the oracle; gains over the best static length, intervals by bootstrap over documents
"""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.measuring.names import HRAD
from pipelines.report.inputs import Inputs, Record
from pipelines.report.plots import draw
from pipelines.report.section import Picture, Section, Table
from pipelines.report.text import highest, known, listed, surely_above

TARGETS = {"classes": "H-RAD", "length": "explicit length"}
BASELINES = {
    "head_argmax": "argmax rule",
    "previous_label": "previous round's label",
    "draft_confidence": "draft confidence",
    "confidence": "confidence rule",
    "oracle": "oracle",
}
METRICS = {"accuracy": "accuracy", "macro F1": "macro_f1", "ECE": "ece"}
CAPTIONS = {
    "reliability": "How often the head was right at each stated confidence; a good head follows the grey line.",
    "confusion": "Rows are what happened, columns what the head said; percentages within a row.",
}
NOTES = (
    "A head says from the states before a draft how many of its next {gamma} tokens will be accepted: H-RAD none, some or all, "
    "the explicit length a number. It learned from {rows[train]} positions of {documents[train]} documents, and is measured on "
    "{rows[test]} of {documents[test]} held-out ones, including the cost of running it.",
    "Where no rule surely gains on validation documents, the best static length is drafted and the head is not run. "
    "Exact length: the share of rounds that submit as many tokens as are accepted.",
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where no head was trained; pictures are of the one that is marked."""
    records = inputs.fitted("head")
    if not records:
        return None
    first = HRAD if HRAD in records else next(iter(records))
    head, figures = records[first], draw(calibration, records[first])
    labels = {name: f"{TARGETS.get(record['target'], record['target'])}, {name}" for name, record in records.items()}
    heads = [row for name, record in records.items() for row in _rows(labels[name], "head", record)]
    others = [row for name, label in BASELINES.items() for row in _rows(label, name, head)]
    gains = {f"{row['predictor']} at {row['sampling']}": row["over best static γ"] for row in heads}
    sure = listed([name for name, gain in gains.items() if surely_above(gain)])
    finding = f"Surely gaining over the best static length in replay: {sure}; highest estimate: {highest(gains)}."
    table = Table(
        [*heads, *others], "Marked: the head that the rows below the heads are compared with", {labels[first]}
    )
    pictures = [Picture(name, figures[name], caption) for name, caption in CAPTIONS.items()]
    notes = [note.format(**head) for note in NOTES]
    return Section("heads", "What heads know before a draft", finding, [table], pictures, notes)


def _rows(label: str, name: str, record: Record) -> Iterator[Record]:
    """What a record says of a predictor or of a baseline, by sampling setting."""
    for setting, part in record["parts"].items():
        metrics, policy = part["metrics"].get(name, {}), part["policies"].get(name, {})
        interval = metrics.get("macro_auc_interval")
        if metrics or policy:
            yield {
                "predictor": label,
                "sampling": setting,
                "macro AUC": interval if known(interval) else metrics.get("macro_auc"),
                **{column: metrics.get(key) for column, key in METRICS.items()},
                "tokens/s": policy.get("tokens_per_second"),
                "over best static γ": policy.get("gain"),
                "exact length": policy.get("length_accuracy"),
                "static γ": part["static_length"] if name == "head" else None,
            }


def calibration(head: Record) -> dict[str, Figure]:
    """Draw a head's record, a panel for each sampling setting: reliability (before and after calibration) and confusion."""
    parts = head["parts"]
    figures = {name: Figure(figsize=(4.4 * len(parts), 4.1), layout="constrained") for name in CAPTIONS}
    for number, (setting, part) in enumerate(parts.items(), 1):
        axes, confusion = (figure.add_subplot(1, len(parts), number) for figure in figures.values())
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, label in (("head_uncalibrated", "before"), ("head", "after")):
            metrics = part["metrics"][name]
            bins = [[one[value] for one in metrics["reliability"]] for value in ("confidence", "accuracy")]
            axes.plot(*bins, marker="o", label=f"{label}, ECE {metrics['ece']:.3f}")
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), title=f"Reliability, {setting}")
        axes.legend()
        _confusion(confusion, setting, part["metrics"]["head"]["confusion"], head["classes"])
    return figures


def _confusion(axes: Axes, setting: str, confusion: list[list[int]], classes: list[str]) -> None:
    """Counts and shares of each true class."""
    counts = np.array(confusion, float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        text, colour = f"{counts[row, column]:g}\n{share:.0%}", "white" if share > 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xticks(range(len(classes)), classes)
    axes.set(xlabel="predicted", ylabel="true", title=f"Accepted tokens, {setting}")
