"""A latency profile as text: provenance, the ratios that decide how far to draft, then every table.

    c = target(1) / draft(1)         draft steps that fit in one target pass
    x = target(n) / target(1)        what verifying n tokens in one pass costs in passes of one
    hidden γ                         tokens that 4 branches grow after their candidates while the target verifies a block of 4:
                                     the γ at which greedy branch-parallel decoding keeps neither model waiting

Where a pair runs by the compact forward, its passes are set against bare Hugging Face's too: the model's own forward over a cache
of its own, without this runtime (`runtime.latency.reference`). x ours: that time over the compact forward's.

Milliseconds are medians, quartiles of the calls in brackets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pipelines.measuring.provenance import commit_of, numerics
from predictors.latency import balanced_gamma
from predictors.latency.profile import REMEDY, LatencyProfile
from predictors.latency.tables import Latency, LatencyTable

COLUMN = 26
BLOCK, CANDIDATES = 4, 4  # tokens that the target verifies, and branches that the draft grows meanwhile
OUTSIDE = {"branch_candidates", "branch_drawing", "chain_verification"}
WAYS = {"one by one": {"draft", "target"}, "concurrent": {"beside_draft", "beside_target"}}
TWINS = {
    "{}_hugging_face": "{} pass by Hugging Face's forward, ms; x ours",
    "beside_{}": "{} pass while the {} works in another process, ms; x alone with all threads",
}
ROUND_TABLES = {  # two axes: columns by temperature
    "chain_drawing": "chain: drawing, by tokens drafted",
    "chain_verification": "chain: verdict and the rest of a round, by tokens drafted",
    "tree_drawing": "tree: drawing, by tokens drafted",
    "tree_verification": "tree: verdict and the rest of a round, by tokens drafted",
    "branch_candidates": "branches: drawing candidates, by candidates",
    "branch_drawing": "branches: drawing a level after them, by branches",
    "branch_verdict": "branches: verdict on the candidates, by candidates",
}
SINGLE_TABLES = {
    "target_prefill": "target prefill",
    "draft_prefill": "draft prefill",
    "reading": "a draft distribution's confidence (and entropy), read by the host",
    "predictor": "one decision of a small head",
    "exchange": "a round's messages to a draft process and back",
}
Ratio = Callable[[Latency, int, int], float]  # of what took so long at a point of the first axis and a context


def latency_table(profile: LatencyProfile) -> str:
    """Lines of text, at most about 115 columns for three contexts."""
    tables = profile.tables
    if "target" not in tables:
        raise ValueError(f"the profile of {profile.pair} has no table 'target'. {REMEDY}")
    lines = [_provenance(profile), *(f"note: {note}" for note in profile.provenance.get("notes", []))]
    lines += [f"noise: {noise}" for noise in profile.noise]
    contexts = contexts_of(profile)
    lines += ["", _row("", [f"context {context}" for context in contexts])]
    if "draft" in tables:
        lines += [_row("draft steps in a target pass, c", [f"{profile.cost_ratio(one):.2f}" for one in contexts])]
    lines += [_row(f"hidden γ, {way}", map(str, gammas)) for way, gammas in hidden_gammas(profile, contexts).items()]
    lines += _grid("draft pass by rows, ms", tables["draft"]) if "draft" in tables else []
    lines += _grid("target pass by tokens, ms; x passes of one token", tables["target"], _over(profile, "target", 1))
    for name, other in (("draft", "target"), ("target", "draft")):
        for twin, title in TWINS.items():
            if twin.format(name) in tables:
                lines += _grid(title.format(name, other), tables[twin.format(name)], _over(profile, name))
    shown = [name for name in ROUND_TABLES if name in tables]
    if shown:
        temperatures = sorted({value for name in shown for value in tables[name].axes["sampled"]})
        lines += ["", _row("a round outside its passes", [f"temperature {value}" for value in temperatures])]
    for name in shown:
        lines += _grid(f"{ROUND_TABLES[name]}, ms", tables[name])
    for name, title in SINGLE_TABLES.items():
        if name in tables:
            lines += _grid(f"{title}, by {next(iter(tables[name].axes))}, ms", tables[name])
    return "\n".join(line.rstrip() for line in lines)


def contexts_of(profile: LatencyProfile) -> list[int]:
    """Tokens of context at which passes were timed."""
    return list(profile.tables["target"].axes["context"])


def hidden_gammas(profile: LatencyProfile, contexts: Sequence[int]) -> dict[str, list[int]]:
    """By way of running both models, the γ whose branches the target's greedy pass still hides, at each of ``contexts``.

    Ways whose tables the profile lacks are left out.
    """
    known = profile.tables.keys()
    return {
        way: [balanced_gamma(profile, BLOCK, CANDIDATES, at, False, way == "concurrent") for at in contexts]
        for way, passes in WAYS.items()
        if known >= passes | OUTSIDE
    }


def _provenance(profile: LatencyProfile) -> str:
    """Where the numbers come from, in one line."""
    origin: Mapping[str, Any] = profile.provenance
    parts = [
        f"{profile.pair} on {origin.get('device', {}).get('slug', 'an unknown device')}",
        numerics(origin) if "models" in origin else "unknown number formats",
        f"{origin.get('threads', 'unknown')} threads",
        f"{profile.tables['target'].calls} calls a cell",
        f"commit {commit_of(origin, digits=8)}",
        f"{origin.get('date', 'unknown date')}",
    ]
    return ", ".join(parts)


def _over(profile: LatencyProfile, name: str, rows: int | None = None) -> Ratio:
    """As multiples of a model's own passes of as many rows, or of so many."""
    axis = next(iter(profile.tables[name].axes))

    def ratio(made: Latency, count: int, context: int) -> float:
        return made.seconds / profile.latency(name, **{axis: rows or count, "context": context}).seconds

    return ratio


def _grid(title: str, table: LatencyTable, ratio: Ratio | None = None) -> list[str]:
    """A line per point of the first axis, a column per point of the second, if there is one."""
    (name, points), *second = table.axes.items()
    columns = [{other: value} for other, values in second for value in values] or [{}]
    lines = ["", title]
    for point in points:
        cells = []
        for column in columns:
            latency = table.at(**{name: point, **column})
            more = f" {ratio(latency, point, column['context']):.2f}x" if ratio else ""
            cells.append(f"{_spread(latency)}{more}")
        lines.append(_row(f"{point:>8}", cells))
    return lines


def _spread(latency: Latency) -> str:
    low, median, high = (_milliseconds(seconds) for seconds in (latency.low, latency.seconds, latency.high))
    return f"{median} ({low}-{high})"


def _milliseconds(seconds: float) -> str:
    """Three significant digits; whole milliseconds from 100 on."""
    return f"{1e3 * seconds:#.3g}" if seconds < 0.0995 else f"{1e3 * seconds:.0f}"


def _row(label: str, cells: Iterable[str]) -> str:
    return f"{label:<34}" + "".join(f"{cell:<{COLUMN}}" for cell in cells)
