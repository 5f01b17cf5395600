"""Draw the report of a measured GPU.

Writes a page next to its file, and where pyarrow is installed the tables of its decodes (`pipelines.gpu.figures`).

    draftwright gpu.report docs/gpu/nvidia-h100-80gb-hbm3.json
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.figures import (
    pair_figures,
    part_of,
    plain_figures,
    read_rows,
    shares_of_a_step,
    speeds,
    write_tables,
)
from pipelines.gpu.pairs import Sized
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN, branch_arm
from pipelines.measuring.provenance import commit_of
from pipelines.outputs import read_json
from pipelines.reporting.page import lines as table
from pipelines.reporting.page import png
from pipelines.reporting.plots import BLUE, GREEN, ORANGE, RED, curves, draw
from pipelines.reporting.section import Cell, Row, Table
from pipelines.reporting.text import MS
from predictors.latency.profile import LatencyProfile

Result = dict[str, Any]
LANES = (BLUE, ORANGE, GREEN, RED)
LIMITS = {  # by what it is, the key of a speed
    "passes at the device's limit": "ceiling",
    "prediction: work as timed alone": "predicted",
    "measured": "tokens_per_second",
}
Aim = tuple[str, str, bool]  # what it is, what came out, whether it was reached
SAID = (
    "Cost of Llamas of the named sizes, function of a small pair trained on the Python standard library: speeds and acceptance "
    "are real, the quality is not a large model's."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="JSON file that python -m pipelines.gpu wrote")


def run(args: argparse.Namespace) -> None:
    """Write ``<device>.md`` and its plots."""
    path = args.results
    remedy = "Name a file that python -m pipelines.gpu wrote."
    results = read_json(path, remedy)
    if missing := {"parts", "settings", "ceilings"} - results.keys():
        raise ValueError(f"{path}: lacks {', '.join(sorted(missing))}. {remedy}")
    rows = read_rows(path.with_suffix(""), results)
    write_tables(path.with_suffix(""), rows)
    page = path.with_suffix(".md")
    page.write_text("\n\n".join(sections(results, rows, path)) + "\n")
    print(page)


def sections(results: Result, rows: Rows, path: Path) -> Iterator[str]:
    """The page, part by part; plots are written beside ``path``."""
    parts, settings, ceilings = results["parts"], results["settings"], Ceilings(**results["ceilings"])
    alone = [name for name in settings["shapes"] if f"plain/{name}" in parts]
    plain = {name: plain_figures(parts[f"plain/{name}"], part_of(rows, "plain", name), ceilings) for name in alone}
    names = (name.split("/")[1] for name in parts if name.startswith("methods/"))
    pairs = {pair: pair_figures(parts[f"methods/{pair}"], part_of(rows, "methods", pair), ceilings) for pair in names}
    sweeps = sorted(pairs.values(), key=lambda sweep: sweep["cost_ratio"])
    yield from _heading(results, ceilings)
    aims = _aims(parts, plain.get(settings["shapes"][0]), sweeps)
    yield table(["aim", "value", "reached"], ([aim, value, "yes" if good else "**no**"] for aim, value, good in aims))
    if plain:
        head = ["shape", "least", "a pass", "a token", "of the bound", "memory: peak / plan"]
        yield "## Plain decoding\n\n" + table(head, (_plain_line(*figures) for figures in plain.items()))
    theirs = [row for part in ("hugging_face", "hugging_face_compiled") for row in speeds(part_of(rows, part))]
    if theirs:
        yield "## Hugging Face on the same weights\n\n" + _speed_table(row for row in theirs if row["arm"] != PLAIN)
    if sweeps:
        yield "## What the latency model promises, what was reached, and what the device could do at most"
        for temperature in sorted({row["temperature"] for row in sweeps[0]["speeds"]}):
            yield _plotted(path, f"prediction-t{temperature:g}", against_prediction, sweeps, temperature)
    for sweep in sweeps:
        yield f"## Methods at c = {sweep['cost_ratio']:.1f}\n\n" + _speed_table(sweep["speeds"])
    if parts.get("picture", {}).get("work"):
        idle, overlap = (parts["picture"][name] for name in ("idle_share", "overlap_share"))
        yield "## A few rounds of branch-parallel decoding"
        yield f"The device was idle for {idle:.1%} of them, and worked on several streams for {overlap:.1%}."
        yield _plotted(path, "streams", device_work, parts["picture"])
    if "growth" in parts:
        yield _plotted(path, "growth", cost_growth, parts["growth"], ceilings)


def _heading(results: Result, ceilings: Ceilings) -> Iterator[str]:
    origin, settings = results["provenance"], results["settings"]
    yield f"# {origin['device']['slug']}"
    yield (
        f"{SAID} Measured at commit {commit_of(origin, '`{}`')}, {origin['date']}, torch "
        f"{origin['versions']['torch']}, transformers {origin['versions']['transformers']}, in {origin['dtype']}; "
        f"{settings['prompts']} held-out prompts of {settings['prompt_tokens']} tokens, {settings['new_tokens']} new ones each. "
        f"The device copies {ceilings.bandwidth / 1e9:,.0f} GB/s (read and written) and multiplies at "
        f"{ceilings.arithmetic / 1e12:,.1f} TFLOP/s."
    )
    for name, reason in results["failed"].items():
        yield f"**Part `{name}` failed**: {reason}"
    if results["left_out"]:
        yield f"**Left out for lack of time**: {', '.join(results['left_out'])}."


def _aims(parts: Result, plain: Result | None, sweeps: Sequence[Result]) -> Iterator[Aim]:
    """What was aimed at, and what came out."""
    if plain is not None:
        share, outside = plain["share_of_bound"], plain["outside_passes"]
        yield "plain decoding, at least 75 % of the bandwidth bound", f"{share:.0%}", share >= 0.75
        yield "outside the models' passes, at most 3 % of plain decoding's round", f"{outside:.1%}", outside <= 0.03
        if plain["memory"]["peak"] is not None:
            over = plain["memory"]["peak"] / plain["memory"]["planned"]["total"] - 1
            yield "peak memory within 5 % of the plan", f"{over:+.1%}", abs(over) <= 0.05
    for sweep in sweeps:
        covered = [row for row in sweep["speeds"] if "predicted" in row]
        worst = min(covered, key=lambda row: row["tokens_per_second"] / row["predicted"])
        of, at = worst["tokens_per_second"] / worst["predicted"], f"c = {sweep['cost_ratio']:.1f}"
        value = f"{of:.0%} ({worst['arm']}, T = {worst['temperature']:g})"
        yield f"at least 95 % of the latency model's prediction, {at}", value, of >= 0.95
        for aim, most, share in shares_of_a_step(LatencyProfile.from_record(sweep["profile"], "profile")):
            yield f"{aim}, {at}", f"{share:.2%}", share <= most
    if "picture" in parts:
        over = parts["picture"]["over_longer_job"]
        yield "a branch stage, at most 1.1 times the longer of its jobs alone", f"{over:.2f}", over <= 1.1
    if "agreement" in parts:
        for form, slack in (("float32", ""), ("bfloat16", ", or part from them at a near-tie")):
            wrong = sum(map(len, parts["agreement"][form].values()))
            yield f"greedy texts in {form} equal Hugging Face's{slack}", f"{wrong} differ", not wrong


def _plain_line(name: str, figures: Result) -> Sequence[str]:
    peak, plan = figures["memory"]["peak"], figures["memory"]["planned"]["total"]
    memory = f"{'?' if peak is None else f'{peak / 2**30:.2f}'} / {plan / 2**30:.2f} GiB"
    seconds = (f"{1e3 * figures[key]:.2f} ms" for key in ("bound_seconds", "pass_seconds", "token_seconds"))
    return name, *seconds, f"{figures['share_of_bound']:.0%}", memory


def _speed_table(found: Iterable[Result]) -> str:
    """Speeds, with what is known of them beside; a column that would be empty is left out."""
    lines = []
    for row in found:
        speed, of = row["tokens_per_second"], row["of_plain"]
        shares = (f"{speed / row[key]:.0%}" if key in row else "" for key in ("predicted", "ceiling"))
        joules = "" if row.get("joules") is None else f"{row['joules']:.2f}"
        own = ["**plain**" if row["arm"] == PLAIN else row["arm"], f"{row['temperature']:g}", f"{speed:.1f}"]
        lines.append([*own, f"{of['value']:.2f}x ({of['low']:.2f} to {of['high']:.2f})", *shares, joules])
    head = ["method", "T", "tokens/s", "of plain (95 %)", "of prediction", "of ceiling", "J/token"]
    used = [place for place, cells in enumerate(zip(*lines, strict=True)) if any(cells)]
    return table([head[place] for place in used], ([line[place] for place in used] for line in lines))


def _plotted(path: Path, name: str, function: Any, *arguments: Any) -> str:
    picture = path.with_name(f"{path.stem}-{name}.png")
    picture.write_bytes(png(draw(function, *arguments)))
    return f"![{name}]({picture.name})"


def against_prediction(sweeps: Sequence[Result], temperature: float) -> Figure:
    """By cost of a draft step, in multiples of plain decoding, a panel per kind of method: prediction, measurement and limit."""
    tables = []
    for kind, concurrent in {"chain": False, "branches": True}.items():
        rows: list[Row] = []
        for sweep in sweeps:
            speeds = [row for row in sweep["speeds"] if row["temperature"] == temperature]
            plain = next(row["tokens_per_second"] for row in speeds if row["arm"] == PLAIN)
            covered = (row for row in speeds if row["arm"] != PLAIN and "predicted" in row)
            some = (row for row in covered if (branch_arm(row["arm"]) is not None) == concurrent)
            best = max(some, key=lambda row: row["tokens_per_second"])
            multiples = {label: best[key] / plain for label, key in LIMITS.items()}
            rows.append({"draft steps in a target pass (c)": sweep["cost_ratio"]} | multiples)
        tables.append(Table(rows, f"Fastest {kind}, multiples of plain decoding, T = {temperature:g}"))
    return curves(tables, line=1.0)


def device_work(picture: Result) -> Figure:
    """What each stream did in a few rounds."""
    streams = sorted({row[0] for row in picture["work"]})
    figure = Figure(figsize=(11, 0.8 + 0.6 * len(streams)), layout="constrained")
    axes = figure.subplots()
    for place, stream in enumerate(streams):
        stretches = [(1e3 * start, 1e3 * (end - start)) for other, start, end in picture["work"] if other == stream]
        axes.broken_barh(stretches, (place - 0.4, 0.8), color=LANES[place % len(LANES)])
    axes.set_yticks(range(len(streams)), [f"stream {stream:g}" for stream in streams])
    axes.set(title="Device work in a few rounds of branch-parallel decoding", xlabel="milliseconds")
    return figure


def cost_growth(growth: Result, ceilings: Ceilings) -> Figure:
    """Passes by context and by tokens, and work outside them by draft length, branches and vocabulary."""
    target = LatencyProfile.from_record(growth["passes"], "passes").table("target")
    model = Sized.from_record(growth["target"])
    tokens, contexts = target.axes["tokens"], target.axes["context"]

    def timed(label: str, at: int, count: int, context: int) -> Row:
        measured = target.at(tokens=count, context=context).seconds
        return {label: at, "a pass": measured, "least": ceilings.pass_seconds(model, count, context)}

    by_context = [timed("cached tokens", context, 1, context) for context in contexts]
    by_tokens = [timed("tokens of the pass", count, count, contexts[0]) for count in tokens]
    tables = [Table(by_context, "A target pass of one token, ms", unit=MS)]
    tables.append(Table(by_tokens, f"A target pass after {contexts[0]} tokens, ms", unit=MS))
    outside = {name: LatencyProfile.from_record(record, name) for name, record in growth["outside"].items()}
    for work, axis, kinds in (
        ("a chain's round", "drafted", ("chain_drawing", "chain_verification")),
        ("a level of branches", "rows", ("branch_drawing", "branch_candidates")),
    ):
        rows: dict[int, dict[str, Cell]] = {}
        for vocabulary, profile in outside.items():
            for kind in kinds:
                table = profile.table(kind)
                label = f"{kind.split('_')[1]}, {int(vocabulary):,} tokens"
                for point, seconds in zip(table.axes[axis], table.median[:, -1].tolist(), strict=True):
                    rows.setdefault(point, {axis: point})[label] = seconds
        made = [rows[point] for point in sorted(rows)]
        tables.append(Table(made, f"Outside the passes of {work}, T = 1, ms", unit=MS))
    return curves(tables, across=2)
