"""Section ``latency``: what passes cost on this machine, and how well these prices predict the speed of static chains.

c = target(1) / draft(1)         draft steps that fit in one target pass
x = target(n) / target(1)        what verifying n tokens in one pass costs in passes of one
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pipelines.reporting.inputs import Inputs
from pipelines.reporting.latency_table import by_point, contexts_of, costs
from pipelines.reporting.plots import curves, picture, whiskers
from pipelines.reporting.prediction import APART, MOST_APART, by_arm, predictions, summary
from pipelines.reporting.section import Check, Row, Section, Table
from pipelines.reporting.text import NUMBER, SHARE, alone, shown
from predictors.latency.profile import LatencyProfile

DRAFT_STEP_BAR, ERROR_BAR, RANK_BAR = 1.8, 0.10, 0.9
DRAFT, TWIN = "draft", "draft_hugging_face"
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
    tables, notes = [costs(profile)], list(NOTES)
    pictures = [picture("latency", "Medians, with quartiles as bands.", latency_figure, profile)]
    if whole["median error"] <= MOST_APART:
        tables.append(_errors(rows))
        both, caption = ["measured, tokens/s", "predicted, tokens/s"], "Whiskers: the latencies' quartiles."
        pictures.append(picture("prediction", caption, whiskers, by_arm(rows), both, "tokens/s", None))
    else:
        notes.append(APART)
    differing = mismatches(profile.provenance, measured.origin).items()
    told = [
        *profile.provenance["notes"],
        *(f"the profile has {field} {mine}, the decodes {other}" for field, (mine, other) in differing),
        *(("noise: " + "; ".join(profile.noise),) if profile.noise else ()),
    ]
    return Section(
        "latency",
        "What a pass costs",
        _finding(profile, whole),
        tables,
        pictures,
        [*notes, *(f"Note: {note}." for note in told)],
        checks=[*_checks(profile, whole)],
    )


def _finding(profile: LatencyProfile, whole: Mapping[str, float]) -> str:
    """What a target pass takes, in draft steps if there is a draft, and how well that predicts."""
    contexts = contexts_of(profile)
    if DRAFT in profile.tables:
        steps = sorted(profile.cost_ratio(context) for context in contexts)
        took = f"as long as {' to '.join(dict.fromkeys(f'{c:.1f}' for c in (steps[0], steps[-1])))} draft steps"
        of, error = "static chains' speed-ups are", whole.get("median speedup error")
    else:
        took = f"{1e3 * profile.latency('target', tokens=1, context=contexts[-1]).seconds:.2f} ms"
        of, error = "plain decoding is", whole["median error"]
    predicted = f"{of} predicted to a median error of {shown(error, SHARE)}"
    together = whole["median error"] <= MOST_APART
    return f"A target pass takes {took}; {predicted if together else 'profile and clock do not agree'}."


def _errors(rows: pd.DataFrame) -> Table:
    parts = {**{str(setting): part for setting, part in rows.groupby("setting")}, "all": rows}
    made: list[Row] = [{"sampling": name, "arms": len(part), **summary(part)} for name, part in parts.items()]
    return Table(made, "Tokens/s of plain decoding and the static chains, predicted against measured")


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
    for context in contexts_of(profile) if TWIN in profile.tables else ():
        slow, fast = (profile.latency(name, rows=1, context=context) for name in (TWIN, "draft"))
        ratio = alone(slow.seconds / fast.seconds)
        yield Check(f"draft step, HF / compact, context {context}", ratio, DRAFT_STEP_BAR)
    for quantity, name in (("tokens/s", "median error"), ("speed-up", "median speedup error")):
        if name in whole:
            yield Check(f"predicted {quantity}, median error", alone(whole[name]), ERROR_BAR, SHARE, at_most=True)
    if "rank correlation" in whole:
        yield Check("their rank correlation", alone(whole["rank correlation"]), RANK_BAR, NUMBER)


def latency_figure(profile: LatencyProfile) -> Figure:
    """Target pass by tokens, draft pass by rows (quartiles as bands), and what a wider target pass costs in passes of one."""
    target, contexts = profile.tables["target"], contexts_of(profile)
    tables = [by_point(target, "Target pass, ms")]
    if DRAFT in profile.tables:
        tables.append(by_point(profile.tables[DRAFT], "Draft pass, ms"))
    ratios: list[Row] = [
        {"tokens": n} | {f"context {context}": profile.verify_ratio(n, context) for context in contexts}
        for n in target.axes["tokens"]
    ]
    return curves([*tables, Table(ratios, "target(n) / target(1)")])
