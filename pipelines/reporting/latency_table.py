"""A latency profile as text: provenance, the ratios that decide how far to draft, then every table.

    c = target(1) / draft(1)         draft steps that fit in one target pass
    x = target(n) / target(1)        what verifying n tokens in one pass costs in passes of one

Where a pair runs by the compact forward, its passes are set against bare Hugging Face's too: the model's own forward over a cache
of its own, without this runtime (`runtime.latency.reference`). x ours: that time over the compact forward's.

Milliseconds are medians, quartiles of the calls in brackets.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipelines.measuring.provenance import numerics
from predictors.latency.profile import REMEDY, LatencyProfile
from predictors.latency.tables import Latency, LatencyTable

COLUMN = 26
ROUND_TABLES = {  # two axes: rows drafted, columns by temperature
    "chain_drawing": "chain: drawing",
    "chain_verification": "chain: verdict and the rest of a round",
    "tree_drawing": "tree: drawing",
    "tree_verification": "tree: verdict and the rest of a round",
}
SINGLE_TABLES = {
    "target_prefill": "target prefill",
    "draft_prefill": "draft prefill",
    "predictor": "one decision of a small head",
    "transfer": "handing over to another process, or from device to host",
}


def latency_table(profile: LatencyProfile) -> str:
    """Lines of text, at most about 110 columns for three contexts."""
    tables = profile.tables
    missing = [name for name in ("draft", "target") if name not in tables]
    if missing:
        raise ValueError(f"the profile of {profile.pair} has no table {missing[0]!r}. {REMEDY}")
    lines = [_provenance(profile), *(f"note: {note}" for note in profile.provenance.get("notes", []))]
    contexts = tables["target"].axes["context"]
    lines += ["", _row("", [f"context {context}" for context in contexts])]
    lines += [_row("draft steps in a target pass, c", [f"{profile.cost_ratio(context):.2f}" for context in contexts])]

    def with_ratio(latency: Latency, tokens: int, context: int) -> str:
        return f"{_spread(latency)} {profile.verify_ratio(tokens, context):.2f}x"

    lines += _grid("draft pass by rows, ms", tables["draft"])
    lines += _grid("target pass by tokens, ms; x passes of one token", tables["target"], with_ratio)
    lines += [line for name in ("draft", "target") for line in _gain(profile, name)]
    shown = [(name, title) for name, title in ROUND_TABLES.items() if name in tables]
    if shown:
        temperatures = sorted({value for name, _ in shown for value in tables[name].axes["sampled"]})
        lines += ["", _row("a round outside its passes", [f"temperature {value}" for value in temperatures])]
    for name, title in shown:
        lines += _grid(f"{title}, by tokens drafted, ms", tables[name])
    for name, title in SINGLE_TABLES.items():
        if name in tables:
            lines += _line(f"{title}, by {next(iter(tables[name].axes))}, ms", tables[name])
    return "\n".join(line.rstrip() for line in lines)


def _provenance(profile: LatencyProfile) -> str:
    """Where the numbers come from, in one line."""
    origin: Mapping[str, Any] = profile.provenance
    changed = " with uncommitted changes" if origin.get("uncommitted_changes") else ""
    parts = [
        f"{profile.pair} on {origin.get('device', {}).get('slug', 'an unknown device')}",
        numerics(origin) if "models" in origin else "unknown number formats",
        f"{origin.get('threads', 'unknown')} threads",
        f"{profile.tables['target'].calls} calls a cell",
        f"commit {(origin.get('commit') or 'unknown')[:8]}{changed}",
        f"{origin.get('date', 'unknown date')}",
    ]
    return ", ".join(parts)


def _grid(title: str, table: LatencyTable, text: Callable[[Latency, int, int], str] | None = None) -> list[str]:
    """A line per point of the first axis, a column per point of the second."""
    (name, rows), (other, columns) = table.axes.items()
    lines = ["", title]
    for row in rows:
        cells = [(table.at(**{name: row, other: column}), row, column) for column in columns]
        lines.append(_row(f"{row:>8}", [text(*cell) if text else _spread(cell[0]) for cell in cells]))
    return lines


def _gain(profile: LatencyProfile, name: str) -> list[str]:
    """The compact forward against Hugging Face's, if both were timed."""
    twin = profile.tables.get(f"{name}_hugging_face")
    if twin is None:
        return []

    def with_gain(latency: Latency, count: int, context: int) -> str:
        ours = profile.latency(name, **{next(iter(twin.axes)): count, "context": context})
        return f"{_spread(latency)} {latency.seconds / ours.seconds:.2f}x"

    return _grid(f"{name} pass by Hugging Face's forward, ms; x ours", twin, with_gain)


def _line(title: str, table: LatencyTable) -> list[str]:
    """A line per point of the only axis."""
    ((name, points),) = table.axes.items()
    return ["", title, *(_row(f"{point:>8}", [_spread(table.at(**{name: point}))]) for point in points)]


def _spread(latency: Latency) -> str:
    low, median, high = (_milliseconds(seconds) for seconds in (latency.low, latency.seconds, latency.high))
    return f"{median} ({low}-{high})"


def _milliseconds(seconds: float) -> str:
    """Three significant digits; whole milliseconds from 100 on."""
    return f"{1e3 * seconds:#.3g}" if seconds < 0.0995 else f"{1e3 * seconds:.0f}"


def _row(label: str, cells: Iterable[str]) -> str:
    return f"{label:<34}" + "".join(f"{cell:<{COLUMN}}" for cell in cells)
