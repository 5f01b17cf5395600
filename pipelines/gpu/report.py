"""Draw the report of a measured GPU: `python -m pipelines.gpu.report docs/gpu/<device>.json` writes a page beside it."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pipelines.gpu import plots
from pipelines.measuring.names import PLAIN
from pipelines.reporting.branch_prediction import predicted_seconds
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
    for part in _sweeps(results):
        add_predictions(part)
    page = path.with_suffix(".md")
    page.write_text("\n\n".join(sections(results, path)) + "\n")
    print(page)


def sections(results: Result, path: Path) -> Iterator[str]:
    """The page, part by part; plots are written beside ``path``."""
    parts, origin = results["parts"], results["provenance"]
    yield f"# {origin['device']['slug']}"
    changed = " with uncommitted changes" if origin["uncommitted_changes"] else ""
    yield (
        f"{SAID} Measured at commit `{(origin['commit'] or 'unknown')[:12]}`{changed}, {origin['date']}, torch "
        f"{origin['versions']['torch']}, transformers {origin['versions']['transformers']}, in {origin['dtype']}; "
        f"{results['settings']['prompts']} held-out prompts of {results['settings']['prompt_tokens']} tokens, "
        f"{results['settings']['new_tokens']} new ones each."
    )
    ceilings = results["ceilings"]
    yield (
        f"The device copies {ceilings['bandwidth'] / 1e9:,.0f} GB/s (read and written) and multiplies at "
        f"{ceilings['arithmetic'] / 1e12:,.1f} TFLOP/s."
    )
    for name, reason in results["failed"].items():
        yield f"**Part `{name}` failed**: {reason}"
    if results["left_out"]:
        yield f"**Left out for lack of time**: {', '.join(results['left_out'])}."
    yield bars(results)
    yield _plain_table(parts)
    if "methods" in parts:
        yield _methods_table(parts["methods"])
    if any(name.startswith("hugging_face") for name in parts):
        yield _hugging_face_table(parts)
    sweeps = _sweeps(results)
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
        yield _plotted(path, "growth", plots.cost_growth, parts["growth"])


def add_predictions(sweep: Result) -> None:
    """To every speed, what the latency model and the device's limits make of the same rounds, in tokens per second."""
    profile = LatencyProfile.from_record(sweep["profile"], "profile")
    rows = [pd.Series(row) for row in sweep["rows"]]
    for speed in sweep["speeds"]:
        own = [row for row in rows if row["arm"] == speed["arm"] and row["temperature"] == speed["temperature"]]
        tokens = sum(row["tokens"] for row in own)
        speed["predicted"] = tokens / sum(predicted_seconds(row, profile) for row in own)
        speed["ceiling"] = tokens / sum(row["floor_seconds"] for row in own)


def bars(results: Result) -> str:
    """What was aimed at, and what came out."""
    parts, lines = results["parts"], ["| aim | value | reached |", "|---|---|---|"]

    def line(aim: str, value: str, reached: bool) -> None:
        lines.append(f"| {aim} | {value} | {'yes' if reached else '**no**'} |")

    main_shape = next((parts[name] for name in parts if name.startswith("plain/")), None)
    if main_shape is not None:
        share = main_shape["share_of_bound"]
        line("plain decoding, at least 75 % of the bandwidth bound", f"{share:.0%}", share >= 0.75)
        outside = main_shape["outside_passes"]
        line("outside the models' passes, at most 3 % of plain decoding's round", f"{outside:.1%}", outside <= 0.03)
        peak = main_shape["memory"]["peak"]
        if peak is not None:
            over = peak / main_shape["memory"]["planned"]["total"] - 1
            line("peak memory within 5 % of the plan", f"{over:+.1%}", abs(over) <= 0.05)
    for sweep in _sweeps(results):
        shares = [row["tokens_per_second"] / row["predicted"] for row in sweep["speeds"]]
        worst = min(range(len(shares)), key=shares.__getitem__)
        arm = f"{sweep['speeds'][worst]['arm']}, T = {sweep['speeds'][worst]['temperature']:g}"
        aim = f"at least 95 % of the latency model's prediction, c = {sweep['cost_ratio']:.1f}"
        line(aim, f"{shares[worst]:.0%} ({arm})", shares[worst] >= 0.95)
        for aim, most, share in shares_of_a_step(LatencyProfile.from_record(sweep["profile"], "profile")):
            line(f"{aim}, c = {sweep['cost_ratio']:.1f}", f"{share:.2%}", share <= most)
    if "picture" in parts:
        over = parts["picture"]["over_longer_job"]
        line("a branch stage, at most 1.1 times the longer of its jobs alone", f"{over:.2f}", over <= 1.1)
    if "agreement" in parts:
        single = sum(parts["agreement"]["float32_parted"].values())
        line("greedy texts in float32 equal plain decoding's", f"{single} differ", single == 0)
        ties = [tie for some in parts["agreement"]["bfloat16_partings"].values() for tie in some]
        near = sum(tie["near_tie"] for tie in ties)
        line("where texts in bfloat16 differ, it is a near-tie", f"{near} of {len(ties)}", near == len(ties))
    return "\n".join(lines)


def shares_of_a_step(profile: LatencyProfile, drafted: int = 4) -> Iterator[tuple[str, float, float]]:
    """Aim, largest share and share of verification, of all work outside passes, and of a decision, in a round of a chain."""
    context = profile.table("target").axes["context"][0]
    passes = drafted * profile.latency("draft", rows=1, context=context).seconds
    passes += profile.latency("target", tokens=1 + drafted, context=context).seconds
    verdict = profile.latency("chain_verification", drafted=drafted, sampled=1).seconds
    drawing = profile.latency("chain_drawing", drafted=drafted, sampled=1).seconds
    whole = passes + verdict + drawing
    yield "verification, at most 1 % of a round of a chain of 4", 0.01, verdict / whole
    yield "all work outside passes, at most 3 % of it", 0.03, (verdict + drawing) / whole
    features = profile.table("predictor").axes["features"][0]
    yield (
        "a decision of the predictor, at most 0.5 % of it",
        0.005,
        profile.latency("predictor", features=features).seconds / whole,
    )


def _sweeps(results: Result) -> list[Result]:
    return [part for name, part in results["parts"].items() if name.startswith("sweep/")]


def _plotted(path: Path, name: str, function: Any, *arguments: Any) -> str:
    picture = path.with_name(f"{path.stem}-{name}.png")
    picture.write_bytes(png(draw(function, *arguments)))
    return f"![{name}]({picture.name})"


def _plain_table(parts: Result) -> str:
    lines = [
        "## Plain decoding",
        "",
        "| shape | least | a pass | a token | of the bound | peak / planned memory |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in parts.items():
        if name.startswith("plain/"):
            peak, plan = part["memory"]["peak"], part["memory"]["planned"]["total"]
            memory = f"{'?' if peak is None else f'{peak / 2**30:.2f}'} / {plan / 2**30:.2f} GiB"
            seconds = (f"{1e3 * part[key]:.2f} ms" for key in ("bound_seconds", "pass_seconds", "token_seconds"))
            lines.append(f"| {name.split('/')[1]} | {' | '.join(seconds)} | {part['share_of_bound']:.0%} | {memory} |")
    return "\n".join(lines)


def _methods_table(part: Result) -> str:
    energy = {row["arm"]: row["joules_per_token"] for row in part["energy"]}
    temperatures = sorted({row["temperature"] for row in part["speeds"]})
    heads = [f"T = {t:g}: tokens/s | of plain (95 %)" for t in temperatures]
    lines = ["## Methods", "", f"| method | {' | '.join(heads)} | J/token |", "|---" * (2 + 2 * len(heads)) + "|"]
    for arm in dict.fromkeys(row["arm"] for row in part["speeds"]):
        cells = []
        for temperature in temperatures:
            row = next(row for row in part["speeds"] if row["arm"] == arm and row["temperature"] == temperature)
            cells.append(_speed(row))
        joules = energy.get(arm)
        name = "**plain**" if arm == PLAIN else arm
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if joules is None else f'{joules:.2f}'} |")
    return "\n".join(lines)


def _hugging_face_table(parts: Result) -> str:
    lines = [
        "## Hugging Face on the same weights, T = 0",
        "",
        "| arm | tokens/s | of our plain decoding |",
        "|---|---|---|",
    ]
    found = [row for name, part in parts.items() if name.startswith("hugging_face") for row in part["speeds"]]
    lines += [f"| {row['arm']} | {_speed(row)} |" for row in found if row["arm"] != PLAIN]
    return "\n".join(lines)


def _speed(row: Result) -> str:
    of = row["of_plain"]
    return f"{row['tokens_per_second']:.1f} | {of['value']:.2f}x ({of['low']:.2f} to {of['high']:.2f})"


def _sweep_table(sweeps: list[Result]) -> str:
    lines = ["| c | method | T | tokens/s | of plain | of prediction | of ceiling |", "|---|---|---|---|---|---|---|"]
    for sweep in sorted(sweeps, key=lambda sweep: sweep["cost_ratio"]):
        for row in sweep["speeds"]:
            shares = (row["tokens_per_second"] / row[key] for key in ("predicted", "ceiling"))
            numbers = [
                f"{row['tokens_per_second']:.1f}",
                f"{row['of_plain']['value']:.2f}x",
                *(f"{s:.0%}" for s in shares),
            ]
            lines.append(
                f"| {sweep['cost_ratio']:.1f} | {row['arm']} | {row['temperature']:g} | {' | '.join(numbers)} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
