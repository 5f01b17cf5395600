"""Section ``latency``: what passes cost on this machine, and how well these prices predict the speed of static chains.

A static chain's distribution of the accepted length comes, by depth, from the rounds of all longer static drafts at its sampling
setting, cut at its own γ. The profile gives the time (`predictors.latency.throughput`). Of what a chain was measured to do, only
the lengths of its outputs enter its own prediction.

    error            predicted / measured - 1, of tokens per second
    drift            plain decoding's error: no acceptance enters there
    speed-up error   (1 + error) / (1 + drift) - 1, of the speed-up over plain decoding
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipelines.measuring.names import PLAIN, chain_gamma
from pipelines.report.comparison import By
from pipelines.report.inputs import Inputs, Measured
from pipelines.report.latency_table import by_point, contexts_of, costs
from pipelines.report.plots import curves, picture, whiskers
from pipelines.report.section import Check, Row, Section, Table
from pipelines.report.text import NUMBER, SHARE, alone, shown
from predictors.latency.profile import LatencyProfile
from predictors.latency.throughput import AcceptanceStatistics, generation_latency

DRAFT_STEP_BAR, ERROR_BAR, RANK_BAR = 1.8, 0.10, 0.9
DRAFT, TWIN = "draft", "draft_hugging_face"
ENDS, SPEEDS = ("value", "low", "high"), ("measured, tokens/s", "predicted, tokens/s")
NOTES = (
    "The machine was timed alone, before any decoding, by interleaved calls; brackets are quartiles. "
    "`draftwright latency` prints every table.",
    "Drift, the error of plain decoding: how much faster (+) or slower (−) the machine ran while it was profiled.",
)
# Median relative error from which on a prediction is none. On one machine it is a few hundredths, and half of it lies beyond what
# another load or number format explains.
MOST_APART = 0.5
APART = (
    f"Latency profile and clock do not belong together: they are more than {MOST_APART:.0%} apart in the median. One of them was "
    "measured on another machine or while other jobs ran. Run dvc repro -sf latency@PAIR, then dvc repro."
)


def section(inputs: Inputs) -> Section | None:
    """``None`` where this machine was not profiled."""
    profile, measured = inputs.profile, inputs.measured
    if profile is None:
        return None
    rows = predictions(measured, profile)
    whole = summary(rows)
    together = whole["median error"] <= MOST_APART
    if DRAFT in profile.tables:
        steps = [f"{steps:.1f}" for steps in sorted(map(profile.cost_ratio, contexts_of(profile)))]
        took = f"as long as {' to '.join(dict.fromkeys((steps[0], steps[-1])))} draft steps"
        of, error = "static chains' speed-ups are", whole.get("median speedup error")
    else:
        took = f"{1e3 * profile.latency('target', tokens=1, context=contexts_of(profile)[-1]).seconds:.2f} ms"
        of, error = "plain decoding is", whole["median error"]
    predicted = f"{of} predicted to a median error of {shown(error, SHARE)}"
    tables, notes = [costs(profile)], list(NOTES)
    pictures = [picture("latency", "Medians, with quartiles as bands.", latency_figure, profile)]
    if together:
        parts = {**{str(setting): part for setting, part in rows.groupby("setting")}, "all": rows}
        errors: list[Row] = [{"sampling": name, "arms": len(part), **summary(part)} for name, part in parts.items()]
        title = "Tokens/s of plain decoding and the static chains, predicted against measured"
        tables.append(Table(errors, title))
        caption = "Whiskers: the latencies' quartiles."
        pictures.append(picture("prediction", caption, whiskers, by_arm(rows), SPEEDS, "tokens/s", None))
    else:
        notes.append(APART)
    differing = mismatches(profile.provenance, measured.origin)
    told = [
        *profile.provenance["notes"],
        *(f"the profile has {field} {mine}, the decodes {other}" for field, (mine, other) in differing.items()),
        *(("noise: " + "; ".join(profile.noise),) if profile.noise else ()),
    ]
    finding = f"A target pass takes {took}; {predicted if together else 'profile and clock do not agree'}."
    notes += [f"Note: {note}." for note in told]
    return Section("latency", "What a pass costs", finding, tables, pictures, notes, checks=[*_checks(profile, whole)])


def mismatches(*origins: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """List where two measurements were not made alike, of number formats, forwards and threads: both values by field."""
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
        slow, fast = (profile.latency(name, rows=1, context=context).seconds for name in (TWIN, DRAFT))
        yield Check(f"draft step, HF / compact, context {context}", alone(slow / fast), DRAFT_STEP_BAR)
    for quantity, name in (("tokens/s", "median error"), ("speed-up", "median speedup error")):
        if name in whole:
            yield Check(f"predicted {quantity}, median error", alone(whole[name]), ERROR_BAR, SHARE, at_most=True)
    if "rank correlation" in whole:
        yield Check("their rank correlation", alone(whole["rank correlation"]), RANK_BAR, NUMBER)


def latency_figure(profile: LatencyProfile) -> Figure:
    """Target pass by tokens, draft pass by rows (quartiles as bands), and what a wider target pass costs in passes of one."""
    captions = {"target": "Target pass, ms", DRAFT: "Draft pass, ms"}
    tables = [by_point(profile, name, title) for name, title in captions.items() if name in profile.tables]
    ratios: list[Row] = [
        {"tokens": n} | {f"context {context}": profile.verify_ratio(n, context) for context in contexts_of(profile)}
        for n in profile.tables["target"].axes["tokens"]
    ]
    return curves([*tables, Table(ratios, "target(n) / target(1)")])


def predictions(measured: Measured, profile: LatencyProfile) -> pd.DataFrame:
    """A row for every static arm at every sampling setting: ``measured`` tokens per second and their predicted ``value`` over the
    same prompts and output lengths; ``low`` and ``high`` follow from the latencies' quartiles."""
    rows = []
    for setting in measured.settings:
        by, sampled = By(setting), not measured.greedy(setting)
        lengths = {arm: chain_gamma(arm) or 0 for arm in measured.arms(setting) if arm == PLAIN or chain_gamma(arm)}
        for arm, gamma in lengths.items():
            longer = [other for other, length in lengths.items() if length > gamma] or [*lengths][-1:]
            accepted = acceptance(measured, setting, longer).accepted_law(gamma) if gamma else np.ones(1)
            runs, seconds = measured.rows(arm, by), np.zeros(3)
            for (prompt, tokens), count in Counter(zip(runs["prompt_tokens"], runs["tokens"], strict=True)).items():
                one = generation_latency(profile, accepted, gamma, int(prompt), int(tokens), sampled)
                seconds += count * tokens / np.array(one.speeds(int(tokens)))
            name, speed = f"γ={gamma}" if gamma else "plain", measured.rate(arm, "tokens", "seconds", by)["value"]
            known = {"setting": setting, "arm": arm, "name": name, "measured": speed}
            rows.append(known | dict(zip(ENDS, runs["tokens"].sum() / seconds, strict=True)))
    table = pd.DataFrame(rows)
    table["error"] = table["value"] / table["measured"] - 1
    plain = table["arm"] == PLAIN
    drift = table["setting"].map(table[plain].set_index("setting")["error"])
    table["speedup_error"] = ((1 + table["error"]) / (1 + drift) - 1).where(~plain)
    return table


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Errors of some predictions, and how well they rank, as far as there are enough to say."""
    errors, of_speedups = rows["error"].abs(), rows["speedup_error"].abs()
    made = {
        "median error": errors.median(),
        "largest error": errors.max(),
        "drift": rows.loc[rows["arm"] == PLAIN, "error"].mean(),
        "median speedup error": of_speedups.median(),
        "largest speedup error": of_speedups.max(),
        "rank correlation": rows["measured"].corr(rows["value"], method="spearman"),
    }
    return {name: float(value) for name, value in made.items() if np.isfinite(value)}


def acceptance(measured: Measured, setting: str, arms: Sequence[str]) -> AcceptanceStatistics:
    """Count acceptance of static drafts in the rounds that nothing cut short."""
    runs = measured.counted[measured.counted["setting"] == setting]
    histograms = {arm: runs.loc[runs["arm"] == arm, "uncut_histogram"] for arm in arms}
    whole = [[row for row in rows if len(row) == (chain_gamma(arm) or 0) + 1] for arm, rows in histograms.items()]
    return AcceptanceStatistics([np.sum(rows, axis=0).tolist() for rows in whole if rows])


def by_arm(rows: pd.DataFrame) -> list[Table]:
    """A table for each sampling setting: every arm's tokens per second, measured and predicted."""
    tables = []
    for setting, own in rows.groupby("setting"):
        known = [(row, {end: row[end] for end in ENDS}) for row in own.to_dict("records")]
        made = [{"arm": row["name"], SPEEDS[0]: row["measured"], SPEEDS[1]: predicted} for row, predicted in known]
        tables.append(Table(made, str(setting)))
    return tables
