"""The study's page: a table of what is enough, a table by share or features of every controller, and a plot of these."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.measuring.provenance import commit_of
from pipelines.reporting.plots import picture, whiskers
from pipelines.reporting.section import Metric, Section, Table, grid
from pipelines.reporting.text import FINE, GAIN, shown

FINDING = (
    "Predictors are fitted as the main pipeline fits them, on shares of the training documents or with fewer features, and "
    "measured on all test documents."
)
NOTES = (
    "Enough is the least share at which, and at all larger ones, no metric is surely worse than with all: the interval of what "
    "is lost, over seeds and on these documents, reaches 0. Of the sets of features that are not surely worse than all, that "
    "of fewest bytes is enough.",
    "Brackets are the least and most of the seeds. Bold, and red in the picture: enough.",
)
Record = Mapping[str, Any]


def page(pair: str, summary: Record) -> Section:
    """A table of how many documents and one of which features, then one for every controller."""
    origin = summary["provenance"]["learning"]
    made = (
        f"{origin['parameters']['seeds']} seeds, prices of {origin['device']['slug']}, commit {commit_of(origin, '`{}`')}, "
        f"{origin['date']}."
    )
    curves, layers = summary["curves"], summary["layers"]
    counts = {name: (curve, summary["present"][name]) for name, curve in curves.items()}
    tables = [_points(f"{name} by share", curve["points"], curve["enough"]) for name, curve in curves.items()]
    tables += [_points(f"{name} by features", one["points"], one["cheapest"]) for name, one in layers.items()]
    caption, panels = "The first metric by share of the documents and by features", [*map(_panel, tables)]
    return Section(
        "enough",
        f"How many documents are enough on {pair}",
        FINDING,
        [
            grid("controller", counts, HOW_MANY, "How many"),
            grid("controller", {name: (one,) for name, one in layers.items()}, WHICH, "Which features"),
            *tables,
        ],
        [picture("enough", caption, whiskers, panels, ["metric"], "bands are seeds", None)],
        [*NOTES, made],
    )


def verdict(curve: Record, present: float) -> str:
    """What the ``present`` share of the study's documents is, seen from the curve."""
    points = curve["points"]
    short = [metric for metric, place in curve["enough_by_metric"].items() if present < points[place]["share"]]
    return f"too few for {', '.join(short)}" if short else "enough"


def lost_at_most(points: Sequence[Record], place: int) -> str | None:
    """What a variant loses at most against the whole, by metric; nothing where it surely gains."""
    highs = {metric: lost["high"] for metric, lost in points[place]["losses"].items()}
    lost = {metric: "unknown" if high is None else _shown(max(0.0, high), metric) for metric, high in highs.items()}
    return None if place == len(points) - 1 else ", ".join(f"{metric} {value}" for metric, value in lost.items())


def share(point: Record) -> str:
    """A share of the training documents."""
    return f"{100 * point['share']:.4g}%"


HOW_MANY: dict[str, Metric] = {  # of a curve, and whether the main pipeline collects as many
    "enough": lambda curve, present: share(curve["points"][curve["enough"]]),
    "documents": lambda curve, present: curve["points"][curve["enough"]]["documents"],
    "rows": lambda curve, present: curve["points"][curve["enough"]]["rows"],
    "by metric": lambda curve, present: ", ".join(
        f"{metric} {share(curve['points'][place])}" for metric, place in curve["enough_by_metric"].items()
    ),
    "lost there at most": lambda curve, present: lost_at_most(curve["points"], curve["enough"]),
    "collected by default": lambda curve, present: f"{present:.1%}",
    "so": verdict,
}
WHICH: dict[str, Metric] = {  # features earn their storage
    "reads all": lambda made: made["points"][-1]["variant"],
    "bytes a row": lambda made: made["points"][-1]["bytes"],
    "enough": lambda made: made["points"][made["cheapest"]]["variant"],
    "bytes of enough": lambda made: made["points"][made["cheapest"]]["bytes"],
    "lost at most": lambda made: lost_at_most(made["points"], made["cheapest"]),
}


def _points(caption: str, points: Sequence[Record], enough: int) -> Table:
    """Every share or variant with its metrics, the mean of the seeds with the least and most; ``enough``: place of what is."""
    named = {share(point) if "share" in point else point["variant"]: (point,) for point in points}
    sizes = [name for name in ("documents", "rows", "bytes") if name in points[0]]
    columns: dict[str, Metric] = {name: lambda point, name=name: point[name] for name in sizes}
    columns |= {name: lambda point, name=name: _over_seeds(point["metrics"][name]) for name in points[0]["metrics"]}
    columns["surely worse"] = lambda point: ", ".join(point["surely_worse"]) or None
    label = "share" if "share" in points[0] else "variant"
    return grid(label, named, columns, caption, marked={list(named)[enough]}, unit=FINE)


def _over_seeds(made: Mapping[str, float]) -> dict[str, float | None]:
    return {"value": made["value"], "low": made["least"], "high": made["most"]}


def _panel(table: Table) -> Table:
    """The rows of a table with its first metric alone."""
    label, *columns = table.columns
    metric = next(name for name in columns if isinstance(table.rows[0][name], dict))
    rows = [{label: row[label], "metric": row[metric]} for row in table.rows]
    return Table(rows, f"{table.caption}: {metric}", table.marked, table.unit_of(metric))


def _shown(value: float, metric: str) -> str:
    return shown(value, GAIN if metric.startswith("gain") else FINE)
