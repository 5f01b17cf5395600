"""Section ``latency``: what passes cost on this machine, and how well these prices predict the speed of static chains.

c = target(1) / draft(1)         draft steps that fit in one target pass
x = target(n) / target(1)        what verifying n tokens in one pass costs in passes of one
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.reporting.inputs import Inputs
from pipelines.reporting.latency_table import BLOCK, hidden_gammas
from pipelines.reporting.plots import band, draw, styles
from pipelines.reporting.prediction import APART, MOST_APART, agreement, predictions, summary
from pipelines.reporting.section import Check, Column, Picture, Row, Section, Table
from pipelines.reporting.text import GAIN, MS, NUMBER, SHARE, TIMES, Interval, shown
from predictors.latency import LatencyProfile
from predictors.latency.tables import Latency, LatencyTable

DRAFT_STEP_BAR, ERROR_BAR, RANK_BAR = 1.8, 0.10, 0.9
TWIN = "draft_hugging_face"
ERRORS = {  # of `summary`, with units
    "median_error": SHARE,
    "largest_error": SHARE,
    "drift": GAIN,
    "median_speedup_error": SHARE,
    "largest_speedup_error": SHARE,
    "rank_correlation": NUMBER,
}
NOTES = (
    "The machine was timed alone, before any decoding, by interleaved calls; brackets are quartiles. "
    "`draftwright latency` prints every table.",
    "Drift, the error of plain decoding: how much faster (+) or slower (−) the machine ran while it was profiled.",
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where this machine was not profiled."""
    profile, measured = inputs.profile, inputs.measured
    if profile is None:
        return None
    rows = predictions(measured, profile)
    whole = summary(rows)
    together = whole["median_error"] <= MOST_APART
    steps = sorted(profile.cost_ratio(context) for context in _contexts(profile))
    ratio = " to ".join(dict.fromkeys(f"{c:.1f}" for c in (steps[0], steps[-1])))
    error = f"static chains' speed-ups are predicted to a median error of {shown(whole['median_speedup_error'], SHARE)}"
    pictures = [Picture("latency", draw(latency_figure, profile), "Medians, with quartiles as bands.")]
    if together:
        caption = "On the line prediction and measurement agree; the band is ±10 %. Whiskers: the latencies' quartiles."
        pictures.append(Picture("prediction", draw(agreement, rows, "tokens/s", "predicted"), caption))
    differing = mismatches(profile.provenance, measured.origin).items()
    notes = [
        *profile.provenance["notes"],
        *(f"the profile has {field} {mine}, the decodes {other}" for field, (mine, other) in differing),
        *(("noise: " + "; ".join(profile.noise),) if profile.noise else ()),
    ]
    return Section(
        "latency",
        "What a pass costs",
        f"A target pass takes as long as {ratio} draft steps; {error if together else 'profile and clock do not agree'}.",
        (_costs(profile), _errors(rows)) if together else (_costs(profile),),
        tuple(pictures),
        (*NOTES, *(() if together else (APART,)), *(f"Note: {note}." for note in notes)),
        checks=tuple(_checks(profile, whole)),
    )


def _costs(profile: LatencyProfile) -> Table:
    """A row for every context; γ is hidden where greedy branch-parallel decoding keeps neither model waiting."""
    hidden = hidden_gammas(profile, _contexts(profile))
    columns = (
        Column("context"),
        Column("target pass, ms", MS),
        Column("draft step, ms", MS),
        Column("draft steps per target pass", NUMBER),
        Column(f"pass of {BLOCK + 1} tokens over one", TIMES),
        *(Column(f"hidden γ, {name}") for name in hidden),
    )
    rows: list[Row] = [
        (
            context,
            _interval(profile.latency("target", tokens=1, context=context)),
            _interval(profile.latency("draft", rows=1, context=context)),
            profile.cost_ratio(context),
            profile.verify_ratio(BLOCK + 1, context),
            *(gammas[number] for gammas in hidden.values()),
        )
        for number, context in enumerate(_contexts(profile))
    ]
    return Table(columns, tuple(rows), "By tokens of context; hidden γ: longest branches that a target pass hides")


def _errors(rows: pd.DataFrame) -> Table:
    parts = {**{str(setting): part for setting, part in rows.groupby("setting")}, "all": rows}
    columns = (
        Column("sampling"),
        Column("arms"),
        *(Column(name.replace("_", " "), unit) for name, unit in ERRORS.items()),
    )
    cells: list[Row] = [(name, len(part), *(summary(part)[key] for key in ERRORS)) for name, part in parts.items()]
    return Table(columns, tuple(cells), "Tokens/s of plain decoding and the static chains, predicted against measured")


def mismatches(*origins: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """In what two measurements were not made alike, of number formats, forwards and threads: both values by field."""
    ours, theirs = (
        {f"{name} {field}": value for name, model in origin["models"].items() for field, value in model.items()}
        | {"threads": origin["threads"]}
        for origin in origins
    )
    both = {field: (ours.get(field, "none"), theirs.get(field, "none")) for field in ours | theirs}
    return {field: (mine, other) for field, (mine, other) in both.items() if mine != other}


def _checks(profile: LatencyProfile, whole: Mapping[str, float]) -> Iterator[Check]:
    """A draft step by Hugging Face's forward over ours; errors of predictions."""
    for context in _contexts(profile) if TWIN in profile.tables else ():
        slow, fast = (profile.latency(name, rows=1, context=context) for name in (TWIN, "draft"))
        ratio: Interval = {"value": slow.seconds / fast.seconds, "low": None, "high": None}
        yield Check(f"draft step, HF / compact, context {context}", ratio, DRAFT_STEP_BAR)
    alone: dict[str, Interval] = {name: {"value": value, "low": None, "high": None} for name, value in whole.items()}
    yield Check("predicted tokens/s, median error", alone["median_error"], ERROR_BAR, SHARE, at_most=True)
    yield Check("predicted speed-up, median error", alone["median_speedup_error"], ERROR_BAR, SHARE, at_most=True)
    yield Check("their rank correlation", alone["rank_correlation"], RANK_BAR, NUMBER)


def _contexts(profile: LatencyProfile) -> list[int]:
    return list(profile.tables["target"].axes["context"])


def _interval(latency: Latency) -> Interval:
    return {"value": latency.seconds, "low": latency.low, "high": latency.high}


def latency_figure(profile: LatencyProfile) -> Figure:
    """Target pass by tokens, draft pass by rows (quartiles as bands), and what a wider target pass costs in passes of one."""
    figure = Figure(figsize=(12.5, 3.8), layout="constrained")
    passes, levels, ratios = figure.subplots(1, 3)
    target, looks = profile.tables["target"], styles([str(context) for context in _contexts(profile)])
    _by_context(passes, target, "tokens")
    passes.set(xlabel="tokens in the pass", ylabel="milliseconds", title="Target pass")
    _by_context(levels, profile.tables["draft"], "rows")
    levels.set(xlabel="rows in the pass", ylabel="milliseconds", title="Draft pass")
    for context, (colour, marker) in looks.items():
        cost = [profile.verify_ratio(tokens, int(context)) for tokens in target.axes["tokens"]]
        ratios.plot(target.axes["tokens"], cost, color=colour, marker=marker)
    ratios.axhline(1, color="#333333", linewidth=1)
    ratios.set(xlabel="tokens in the pass, n", ylabel="target(n) / target(1)", title="What verifying n tokens costs")
    ratios.grid(axis="y", color="#e6e6e6")
    figure.legend(*passes.get_legend_handles_labels(), loc="outside lower center", ncols=len(looks))
    return figure


def _by_context(axes: Axes, table: LatencyTable, axis: str) -> None:
    contexts = list(table.axes["context"])
    for context, look in zip(contexts, styles([str(context) for context in contexts]).values(), strict=True):
        cells = [_interval(table.at(**{axis: point, "context": context})) for point in table.axes[axis]]
        band(axes, table.axes[axis], cells, look, f"context {context}", scale=1e3)
    axes.set_ylim(0, None)
