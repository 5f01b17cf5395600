"""Section ``latency`` and the tables of ``draftwright latency``: what passes cost on this machine, and how far to draft
by that.

    draft steps per target pass     target(1) / draft(1)
    pass of n tokens over one       target(n) / target(1)
    hidden γ                        tokens that 4 branches grow after their candidates while the target verifies a block of 4:
                                    the γ at which greedy branch-parallel decoding keeps neither model waiting

Milliseconds are medians, with quartiles.
"""

from collections.abc import Mapping
from typing import Any

from pipelines.measuring.provenance import commit_of, numerics
from pipelines.report.inputs import Inputs
from pipelines.report.section import Interval, Picture, Row, Section, Table, Unit, frame, markdown, shown
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import Latency, LatencyProfile
from predictors.latency.throughput import generation_latency, iid_accepted_law

DRAFT, TARGET, ENDS = "draft", "target", ("value", "low", "high")
STEPS = "draft steps per target pass"
BLOCK, CANDIDATES = 4, 4  # tokens that the target verifies, and branches that the draft grows meanwhile
GAMMAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
PRICED = {DRAFT, TARGET, "branch_candidates", "branch_drawing", "chain_verification"}  # of hidden γ
NOTE = (
    "The machine was timed alone, before any decoding, by interleaved calls; brackets are quartiles. "
    "`draftwright latency` prints every table."
)


def section(inputs: Inputs) -> Section | None:
    """Make the section; ``None`` where this machine was not profiled."""
    profile = inputs.profile
    if profile is None:
        return None
    table = costs(profile)
    told = [*profile.provenance["notes"], *(f"noise: {one}" for one in profile.noise)]
    differing = mismatches(profile.provenance, inputs.measured.origin)
    told += [f"the profile has {field} {mine}, the decodes {other}" for field, (mine, other) in differing.items()]
    finding = f"After {' / '.join(map(str, contexts_of(profile)))} tokens of context a target pass takes "
    finding += " / ".join(shown(cell["value"], Unit.MS) for cell in table.frame["target pass, ms"]) + " ms"
    if DRAFT in profile.tables:
        finding += f", as long as {' / '.join(f'{steps:.1f}' for steps in table.frame[STEPS])} draft steps"
    notes = [NOTE, *(f"Note: {one}." for one in told)]
    return Section("latency", "What a pass costs", f"{finding}.", [table], [passes(profile)], notes)


def mismatches(*origins: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """List where two measurements were not made alike, of number formats, forwards and threads: both values by field."""
    ours, theirs = (
        {f"{name} {field}": value for name, model in origin["models"].items() for field, value in model.items()}
        | {"threads": origin["threads"]}
        for origin in origins
    )
    both = {field: (ours.get(field, "none"), theirs.get(field, "none")) for field in ours | theirs}
    return {field: (mine, other) for field, (mine, other) in both.items() if mine != other}


def contexts_of(profile: LatencyProfile) -> list[int]:
    """Tokens of context at which passes were timed."""
    return list(profile.tables[TARGET].axes["context"])


def costs(profile: LatencyProfile) -> Table:
    """A row for every context; γ is hidden where greedy branch-parallel decoding keeps neither model waiting."""
    rows, prices = list[Row](), RoundPrices(profile, sampled=False, quiet=False)
    for context in contexts_of(profile):
        row: dict[str, Any] = {"context": context}
        row["target pass, ms"] = _interval(profile.latency(TARGET, tokens=1, context=context))
        if DRAFT in profile.tables:
            row["draft step, ms"] = _interval(profile.latency(DRAFT, rows=1, context=context))
            row[STEPS] = profile.cost_ratio(context)
        row[f"pass of {BLOCK + 1} tokens over one"] = profile.verify_ratio(BLOCK + 1, context)
        if profile.tables.keys() >= PRICED:
            row["hidden γ"] = prices.balanced_gamma(BLOCK, CANDIDATES, context)
        rows.append(row)
    return Table("costs", frame(rows), "By tokens of context; hidden γ: longest branches that a target pass hides")


def passes(profile: LatencyProfile) -> Picture:
    """Passes by tokens and rows, and what a wider target pass costs in passes of one."""
    tables = [by_point(profile, name) for name in (TARGET, DRAFT) if name in profile.tables]
    return Picture("latency", "Milliseconds: medians, with quartiles as bands.", [*tables, ratios(profile)])


def latency_table(profile: LatencyProfile) -> str:
    """Write costs by context and every table, in milliseconds, as Markdown."""
    origin: Mapping[str, Any] = profile.provenance
    facts = [
        numerics(origin) if "models" in origin else "unknown number formats",
        f"{origin.get('threads', 'unknown')} threads",
        f"{profile.table(TARGET).calls} calls a cell",
        f"commit {commit_of(origin, digits=8)}",
        origin.get("date", "unknown date"),
    ]
    title = f"{profile.pair} on {origin.get('device', {}).get('slug', 'an unknown device')}"
    notes = [*(f"note: {note}" for note in origin.get("notes", [])), *(f"noise: {one}" for one in profile.noise)]
    tables = [costs(profile), *measured_tables(profile)]
    return markdown(Section("latency", title, ", ".join(facts), tables, notes=notes), level=1)


def measured_tables(profile: LatencyProfile) -> list[Table]:
    """Multiples of a target pass of one token, then every table that was measured."""
    return [ratios(profile), *(by_point(profile, name) for name in profile.tables)]


def ratios(profile: LatencyProfile) -> Table:
    """What verifying n tokens in one pass costs in passes of one."""
    rows = [
        {"tokens": n} | {f"context {context}": profile.verify_ratio(n, context) for context in contexts_of(profile)}
        for n in profile.tables[TARGET].axes["tokens"]
    ]
    return Table("target(n) / target(1)", frame(rows), unit=Unit.TIMES)


def by_point(profile: LatencyProfile, name: str) -> Table:
    """A row per point of the first axis, a column per point of the second, if there is one."""
    table, rows = profile.tables[name], list[Row]()
    (first, points), *second = table.axes.items()
    columns: dict[str, dict[str, int]] = {
        f"{'temperature' if other == 'sampled' else other} {value}": {other: value}
        for other, values in second
        for value in values
    }
    for point in points:
        at = {label: _interval(table.at(**{first: point, **place})) for label, place in (columns or {"ms": {}}).items()}
        rows.append({first: point} | at)
    return Table(name.replace("_", " "), frame(rows), unit=Unit.MS)


def prediction_table(
    profile: LatencyProfile, alpha: float, prompt_tokens: int, new_tokens: int, temperature: float
) -> str:
    """Write a row per static length, the fastest in bold, where every drafted token is accepted with probability ``alpha``,
    independently; brackets: by the latencies' quartiles. `ValueError` without a draft."""
    if DRAFT not in profile.tables:
        raise ValueError(f"pair {profile.pair} has no draft model whose tokens are accepted. Leave --acceptance out.")
    made = {}
    for gamma in GAMMAS:
        accepted = iid_accepted_law(alpha, gamma)
        latency = generation_latency(profile, accepted, gamma, prompt_tokens, new_tokens, temperature > 0)
        made[f"chain γ={gamma}" if gamma else "plain"] = dict(zip(ENDS, latency.speeds(new_tokens), strict=True))
    best = max(made, key=lambda name: made[name]["value"])
    plain = made["plain"]["value"]
    rows = frame({"": name, "tokens/s": speed, "over plain": speed["value"] / plain} for name, speed in made.items())
    request = f"{new_tokens} tokens after a prompt of {prompt_tokens}, T={temperature:g}"
    table = Table(request, rows, marked={best})
    return markdown(Section("prediction", f"Predicted tokens/s at acceptance {alpha:g}", request, [table]), level=1)


def _interval(latency: Latency) -> Interval:
    """Median and quartiles."""
    return {"value": latency.seconds, "low": latency.low, "high": latency.high}
