"""A latency profile as tables: the ratios that decide how far to draft, then every table that was measured.

    c = target(1) / draft(1)         draft steps that fit in one target pass
    x = target(n) / target(1)        what verifying n tokens in one pass costs in passes of one
    hidden γ                         tokens that 4 branches grow after their candidates while the target verifies a block of 4:
                                     the γ at which greedy branch-parallel decoding keeps neither model waiting

Milliseconds are medians, with quartiles; x ours: bare Hugging Face's time over the compact forward's (`runtime.latency.passes`).
Speeds of static chains take every drafted token as accepted with one probability α, independently (`iid_accepted_law`).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pipelines.measuring.provenance import commit_of, numerics
from pipelines.report.page import markdown
from pipelines.report.section import Cell, Metric, Row, Section, Table, grid
from pipelines.report.text import MS, TIMES, Interval, shown
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import Latency, LatencyProfile
from predictors.latency.throughput import generation_latency, iid_accepted_law

BLOCK, CANDIDATES = 4, 4  # tokens that the target verifies, and branches that the draft grows meanwhile
GAMMAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
PRICED = {"draft", "target", "branch_candidates", "branch_drawing", "chain_verification"}  # of hidden γ
TABLES = {
    "chain_drawing": "chain: drawing, by tokens drafted",
    "chain_verification": "chain: verdict and the rest of a round, by tokens drafted",
    "tree_drawing": "tree: drawing, by tokens drafted",
    "tree_verification": "tree: verdict and the rest of a round, by tokens drafted",
    "branch_candidates": "branches: drawing candidates, by candidates",
    "branch_drawing": "branches: drawing a level after them, by branches",
    "branch_verdict": "branches: verdict on the candidates, by candidates",
    "target_prefill": "target prefill",
    "draft_prefill": "draft prefill",
    "draft_first": "a round's first draft pass, which takes the target's states; rows are its tokens",
    "reading": "a draft distribution's confidence (and entropy), read by the host",
    "predictor": "one decision of a small head",
}


def latency_table(profile: LatencyProfile) -> str:
    """Costs by context and every table, in milliseconds, as Markdown."""
    origin: Mapping[str, Any] = profile.provenance
    facts = [
        numerics(origin) if "models" in origin else "unknown number formats",
        f"{origin.get('threads', 'unknown')} threads",
        f"{profile.table('target').calls} calls a cell",
        f"commit {commit_of(origin, digits=8)}",
        origin.get("date", "unknown date"),
    ]
    title = f"{profile.pair} on {origin.get('device', {}).get('slug', 'an unknown device')}"
    notes = [*(f"note: {note}" for note in origin.get("notes", [])), *(f"noise: {one}" for one in profile.noise)]
    tables = [costs(profile), *measured_tables(profile)]
    return markdown(Section("latency", title, ", ".join(facts), tables, notes=notes), level=1)


def costs(profile: LatencyProfile) -> Table:
    """A row for every context; γ is hidden where greedy branch-parallel decoding keeps neither model waiting."""
    drafted, price = "draft" in profile.tables, profile.latency
    columns: dict[str, Metric] = {
        "target pass, ms": lambda context: _interval(price("target", tokens=1, context=context)),
        "draft step, ms": lambda context: _interval(price("draft", rows=1, context=context)) if drafted else None,
        "draft steps per target pass": lambda context: profile.cost_ratio(context) if drafted else None,
        f"pass of {BLOCK + 1} tokens over one": partial(profile.verify_ratio, BLOCK + 1),
    }
    if profile.tables.keys() >= PRICED:
        columns["hidden γ"] = partial(
            RoundPrices(profile, sampled=False, quiet=False).balanced_gamma, BLOCK, CANDIDATES
        )
    caption = "By tokens of context; hidden γ: longest branches that a target pass hides"
    return grid("context", {context: (context,) for context in contexts_of(profile)}, columns, caption)


def measured_tables(profile: LatencyProfile) -> Iterator[Table]:
    """Passes with what they are multiples of, then a round outside its passes and the rest."""
    if "draft" in profile.tables:
        yield by_point(profile, "draft", "draft pass by rows")
    yield by_point(profile, "target", "target pass by tokens; x passes of one token", "target", 1)
    for name in ("draft", "target"):
        if (twin := f"{name}_hugging_face") in profile.tables:
            yield by_point(profile, twin, f"{name} pass by Hugging Face's forward; x ours", name)
    for name, title in TABLES.items():
        if name in profile.tables:
            yield by_point(profile, name, title)


def by_point(
    profile: LatencyProfile, name: str, caption: str, over: str | None = None, of_rows: int | None = None
) -> Table:
    """A row per point of the first axis, a column per point of the second, if there is one, each as a multiple of a model's own
    passes (``over``) of as many rows, or of so many."""
    table = profile.tables[name]
    (first, points), *second = table.axes.items()
    columns: dict[str, dict[str, int]] = {
        f"{'temperature' if other == 'sampled' else other} {value}": {other: value}
        for other, values in second
        for value in values
    }
    rows: list[Row] = []
    for point in points:
        row: dict[str, Cell] = {first: point}
        for label, place in (columns or {"ms": {}}).items():
            latency = table.at(**{first: point, **place})
            row[label] = _interval(latency)
            if over is not None:
                axis = next(iter(profile.tables[over].axes))
                base = profile.latency(over, **{axis: of_rows or point, "context": place["context"]})
                row[f"x, {label}"] = shown(latency.seconds / base.seconds, TIMES)
        rows.append(row)
    return Table(rows, caption, unit=MS)


def contexts_of(profile: LatencyProfile) -> list[int]:
    """Tokens of context at which passes were timed."""
    return list(profile.tables["target"].axes["context"])


def prediction_table(
    profile: LatencyProfile, alpha: float, prompt_tokens: int, new_tokens: int, temperature: float
) -> str:
    """A row per static length, the fastest in bold; brackets: by the latencies' quartiles. `ValueError` without a draft."""
    if "draft" not in profile.tables:
        raise ValueError(f"pair {profile.pair} has no draft model whose tokens are accepted. Leave --acceptance out.")
    made = {
        f"chain γ={gamma}" if gamma else "plain": generation_latency(
            profile, iid_accepted_law(alpha, gamma), gamma, prompt_tokens, new_tokens, temperature > 0
        ).speeds(new_tokens)
        for gamma in GAMMAS
    }
    best = max(made, key=lambda name: made[name][0])
    columns: dict[str, Metric] = {
        "tokens/s": lambda *speeds: dict(zip(("value", "low", "high"), speeds, strict=True)),
        "over plain": lambda speed, *_: speed / made["plain"][0],
    }
    request = f"{new_tokens} tokens after a prompt of {prompt_tokens}, T={temperature:g}"
    title = f"Predicted tokens/s at acceptance {alpha:g}"
    rows = grid("", made, columns, marked={best})
    return markdown(Section("prediction", title, request, [rows]), level=1)


def _interval(latency: Latency) -> Interval:
    """Median and quartiles."""
    return {"value": latency.seconds, "low": latency.low, "high": latency.high}
