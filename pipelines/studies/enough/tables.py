"""The summary in Markdown."""

from collections.abc import Mapping
from typing import Any

from pipelines.studies.enough.fits import ASKED, GAIN

SHARES = (GAIN, ASKED)  # metrics that are shares


def recommended_sizes(summary: Mapping[str, Any]) -> str:
    """How many traces are enough, by controller and metric, beside what the main pipeline collects."""
    lines = [
        "| controller | enough | documents | rows | by metric | lost there at most | collected by default | so |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, curve in summary["curves"].items():
        points, present = curve["points"], summary["present"][name]
        point = points[curve["enough"]]
        by_metric = [f"{metric} {shown_share(points[place])}" for metric, place in curve["enough_by_metric"].items()]
        lines.append(
            f"| {name} | {shown_share(point)} | {point['documents']} | {point['rows']} | {', '.join(by_metric)} | "
            f"{'–' if point is points[-1] else at_most(point)} | {present:.1%} | {verdict(curve, present)} |"
        )
    return "\n".join(lines)


def verdict(curve: Mapping[str, Any], present: float) -> str:
    """What the ``present`` share of the study's traces is, seen from the curve."""
    points, needed = curve["points"], [curve["points"][place]["share"] for place in curve["enough_by_metric"].values()]
    if present >= points[curve["enough"]]["share"]:
        return "enough"
    short = [metric for metric, share in zip(curve["enough_by_metric"], needed, strict=True) if present < share]
    return f"too few for {', '.join(short)}"


def recommended_features(summary: Mapping[str, Any]) -> str:
    """Which features earn their storage, by controller."""
    lines = [
        "| controller | reads all | bytes a row | enough | bytes a row | lost at most |",
        "|---|---|---|---|---|---|",
    ]
    for name, study in summary["layers"].items():
        whole, point = study["points"][-1], study["points"][study["cheapest"]]
        lines.append(
            f"| {name} | {whole['variant']} | {whole['bytes']} | {point['variant']} | {point['bytes']} | "
            f"{'–' if point is whole else at_most(point)} |"
        )
    return "\n".join(lines)


def curve_table(curve: Mapping[str, Any]) -> str:
    """One controller at every share of its training documents."""
    named = [
        {"name": shown_share(point), "sizes": [point["documents"], point["rows"]], **point} for point in curve["points"]
    ]
    return _table(["share", "documents", "rows"], named)


def feature_table(study: Mapping[str, Any]) -> str:
    """One controller with every set of features."""
    named = [{"name": point["variant"], "sizes": [point["bytes"]], **point} for point in study["points"]]
    return _table(["reads", "bytes a row"], named)


def at_most(point: Mapping[str, Any]) -> str:
    """What a variant loses at most against the whole, by metric; nothing where it surely gains."""
    return ", ".join(f"{metric} {shown(max(0.0, lost['high']), metric)}" for metric, lost in point["losses"].items())


def shown_share(point: Mapping[str, Any]) -> str:
    """A share of the training documents."""
    return f"{100 * point['share']:.4g}%"


def shown(value: float, metric: str) -> str:
    """A metric's value or loss."""
    return f"{value:.1%}" if metric in SHARES else f"{value:.3f}"


def _table(first: list[str], points: list[dict[str, Any]]) -> str:
    metrics = list(points[0]["metrics"])
    header = [*first, *metrics, f"lost of {metrics[0]}", "surely worse"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for point in points:
        cells = [
            f"{shown(made['value'], name)} ({shown(made['low'], name)} to {shown(made['high'], name)}; seeds "
            f"{shown(made['least'], name)} to {shown(made['most'], name)})"
            for name, made in point["metrics"].items()
        ]
        lost = point["losses"][metrics[0]]
        cells.append(
            "–"
            if point is points[-1]
            else f"{shown(lost['value'], metrics[0])} ({shown(lost['low'], metrics[0])} to {shown(lost['high'], metrics[0])})"
        )
        row = [point["name"], *map(str, point["sizes"]), *cells, ", ".join(point["surely_worse"]) or "–"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)
