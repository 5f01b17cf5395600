"""Draw the report of a measured GPU: `python -m pipelines.gpu.report docs/gpu/<device>.json` writes a page beside it, and where
pyarrow is installed the tables of its decodes (`pipelines.gpu.decodes`)."""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipelines.gpu import plots
from pipelines.gpu.ceilings import Ceilings
from pipelines.gpu.decodes import part_of, read_rows, write_tables
from pipelines.gpu.figures import plain_figures, shares_of_a_step, speeds, sweep_figures
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PLAIN
from pipelines.reporting.plots import draw
from pipelines.reporting.report_page import png
from predictors.latency.profile import LatencyProfile

Result = dict[str, Any]
SAID = (
    "Cost of Llamas of the named sizes, function of a small pair trained on the Python standard library: speeds and acceptance "
    "are real, the quality is not a large model's."
)


def main(arguments: list[str] | None = None) -> None:
    """Write ``<device>.md`` and its plots."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.gpu.report", description=__doc__)
    parser.add_argument("results", type=Path, help="JSON file that python -m pipelines.gpu wrote")
    path = parser.parse_args(arguments).results
    results = json.loads(path.read_text())
    rows = read_rows(path.with_suffix(""), results)
    write_tables(path.with_suffix(""), rows)
    page = path.with_suffix(".md")
    page.write_text("\n\n".join(sections(results, rows, path)) + "\n")
    print(page)


def sections(results: Result, rows: Rows, path: Path) -> Iterator[str]:
    """The page, part by part; plots are written beside ``path``."""
    parts, origin, ceilings = results["parts"], results["provenance"], Ceilings(**results["ceilings"])
    plain = {
        name: plain_figures(parts[f"plain/{name}"], part_of(rows, "plain", name), ceilings)
        for name in results["settings"]["shapes"]
        if f"plain/{name}" in parts
    }
    timed = part_of(rows, "methods")
    found = {pair: part_of(timed, "methods", pair) for pair in dict.fromkeys(row["pair"] for row in timed)}
    sweeps = [
        sweep_figures(part, found[name.split("/")[1]], ceilings)
        for name, part in parts.items()
        if name.startswith("methods/")
    ]
    sweeps.sort(key=lambda sweep: sweep["cost_ratio"])
    changed = " with uncommitted changes" if origin["uncommitted_changes"] else ""
    yield f"# {origin['device']['slug']}"
    yield (
        f"{SAID} Measured at commit `{(origin['commit'] or 'unknown')[:12]}`{changed}, {origin['date']}, torch "
        f"{origin['versions']['torch']}, transformers {origin['versions']['transformers']}, in {origin['dtype']}; "
        f"{results['settings']['prompts']} held-out prompts of {results['settings']['prompt_tokens']} tokens, "
        f"{results['settings']['new_tokens']} new ones each."
    )
    yield (
        f"The device copies {ceilings.bandwidth / 1e9:,.0f} GB/s (read and written) and multiplies at "
        f"{ceilings.arithmetic / 1e12:,.1f} TFLOP/s."
    )
    for name, reason in results["failed"].items():
        yield f"**Part `{name}` failed**: {reason}"
    if results["left_out"]:
        yield f"**Left out for lack of time**: {', '.join(results['left_out'])}."
    yield bars(parts, plain.get(results["settings"]["shapes"][0]), sweeps)
    if plain:
        yield "## Plain decoding\n\n" + _plain_table(plain)
    if found:
        name = max(found, key=lambda name: len({row["arm"] for row in found[name]}))  # of the whole table of arms
        yield "## Methods\n\n" + _methods_table(found[name], parts.get(f"methods/{name}", {}).get("energy", {}))
    theirs = [row for part in ("hugging_face", "hugging_face_compiled") for row in speeds(part_of(rows, part))]
    if theirs:
        lines = ([row["arm"], *_speed(row)] for row in theirs if row["arm"] != PLAIN)
        table = _table(["arm", "tokens/s", "of our plain decoding"], lines)
        yield f"## Hugging Face on the same weights, T = 0\n\n{table}"
    if sweeps:
        yield "## What the latency model promises, what was reached, and what the device could do at most"
        for temperature in sorted({row["temperature"] for row in sweeps[0]["speeds"]}):
            yield _plotted(path, f"prediction-t{temperature:g}", plots.against_prediction, sweeps, temperature)
        yield _sweep_table(sweeps)
    if parts.get("picture", {}).get("work"):
        idle, overlap = (parts["picture"][name] for name in ("idle_share", "overlap_share"))
        yield "## A few rounds of branch-parallel decoding"
        yield f"The device was idle for {idle:.1%} of them, and worked on several streams for {overlap:.1%}."
        yield _plotted(path, "streams", plots.device_work, parts["picture"])
    if "growth" in parts:
        yield _plotted(path, "growth", plots.cost_growth, parts["growth"], ceilings)


def bars(parts: Result, plain: Result | None, sweeps: Sequence[Result]) -> str:
    """What was aimed at, and what came out."""
    lines = ([aim, value, "yes" if met else "**no**"] for aim, value, met in _aims(parts, plain, sweeps))
    return _table(["aim", "value", "reached"], lines)


def _aims(parts: Result, plain: Result | None, sweeps: Sequence[Result]) -> Iterator[tuple[str, str, bool]]:
    """Aim, value, and whether it was reached."""
    if plain is not None:
        share, outside = plain["share_of_bound"], plain["outside_passes"]
        yield "plain decoding, at least 75 % of the bandwidth bound", f"{share:.0%}", share >= 0.75
        yield "outside the models' passes, at most 3 % of plain decoding's round", f"{outside:.1%}", outside <= 0.03
        if plain["memory"]["peak"] is not None:
            over = plain["memory"]["peak"] / plain["memory"]["planned"]["total"] - 1
            yield "peak memory within 5 % of the plan", f"{over:+.1%}", abs(over) <= 0.05
    for sweep in sweeps:
        of, worst = min((row["tokens_per_second"] / row["predicted"], _named(row)) for row in sweep["speeds"])
        ratio = f"c = {sweep['cost_ratio']:.1f}"
        yield f"at least 95 % of the latency model's prediction, {ratio}", f"{of:.0%} ({worst})", of >= 0.95
        for aim, most, share in shares_of_a_step(LatencyProfile.from_record(sweep["profile"], "profile")):
            yield f"{aim}, {ratio}", f"{share:.2%}", share <= most
    if "picture" in parts:
        over = parts["picture"]["over_longer_job"]
        yield "a branch stage, at most 1.1 times the longer of its jobs alone", f"{over:.2f}", over <= 1.1
    if "agreement" in parts:
        single, half = parts["agreement"]["float32"], parts["agreement"]["bfloat16"]
        near = sum(parting["near_tie"] for parting in half)
        yield "greedy texts in float32 equal plain decoding's", f"{len(single)} differ", not single
        yield "where texts in bfloat16 differ, it is a near-tie", f"{near} of {len(half)}", near == len(half)


def _plain_table(plain: Result) -> str:
    lines = []
    for name, figures in plain.items():
        peak, plan = figures["memory"]["peak"], figures["memory"]["planned"]["total"]
        memory = f"{'?' if peak is None else f'{peak / 2**30:.2f}'} / {plan / 2**30:.2f} GiB"
        seconds = (f"{1e3 * figures[key]:.2f} ms" for key in ("bound_seconds", "pass_seconds", "token_seconds"))
        lines.append([name, *seconds, f"{figures['share_of_bound']:.0%}", memory])
    return _table(["shape", "least", "a pass", "a token", "of the bound", "peak / planned memory"], lines)


def _methods_table(rows: Rows, energy: Result) -> str:
    found = {(row["arm"], row["temperature"]): row for row in speeds(rows)}
    arms, temperatures = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    heads = [head for t in temperatures for head in (f"T = {t:g}: tokens/s", "of plain (95 %)")]
    lines = []
    for arm in arms:
        cells = [cell for temperature in temperatures for cell in _speed(found[arm, temperature])]
        joules = f"{energy[arm]:.2f}" if arm in energy else ""
        lines.append(["**plain**" if arm == PLAIN else arm, *cells, joules])
    return _table(["method", *heads, "J/token"], lines)


def _sweep_table(sweeps: Sequence[Result]) -> str:
    lines = []
    for sweep in sweeps:
        for row in sweep["speeds"]:
            speed = row["tokens_per_second"]
            shares = (f"{speed / row[key]:.0%}" for key in ("predicted", "ceiling"))
            own = [f"{sweep['cost_ratio']:.1f}", row["arm"], f"{row['temperature']:g}", f"{speed:.1f}"]
            lines.append([*own, f"{row['of_plain']['value']:.2f}x", *shares])
    return _table(["c", "method", "T", "tokens/s", "of plain", "of prediction", "of ceiling"], lines)


def _speed(row: Result) -> list[str]:
    of = row["of_plain"]
    return [f"{row['tokens_per_second']:.1f}", f"{of['value']:.2f}x ({of['low']:.2f} to {of['high']:.2f})"]


def _named(row: Result) -> str:
    return f"{row['arm']}, T = {row['temperature']:g}"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _plotted(path: Path, name: str, function: Any, *arguments: Any) -> str:
    picture = path.with_name(f"{path.stem}-{name}.png")
    picture.write_bytes(png(draw(function, *arguments)))
    return f"![{name}]({picture.name})"


if __name__ == "__main__":
    main()
