"""Stage of the studies: the grid of the paper on progressive tree drafting (children, depth, how guesses are drawn) in tables.

Writes a folder named after the device: ``self_drafting.md``, ``self_drafting.json`` and a plot of what guesses cost and bring.
"""

import argparse
from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import measured_on
from pipelines.reporting.intervals import times
from pipelines.reporting.markdown import table
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study

HEADER = ["arm", "DE", "HR", "AL", "guessed a pass", "candidates a pass", "upkeep", "speed-up over plain"]


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.inputs import read_fitted
    from pipelines.reporting.self_drafting_report import SelfDraftingReport

    study = read_study(args, "self_drafting_report")
    records = read_fitted(study.records, "guess")
    report = SelfDraftingReport(study.measured, records, study.config.bootstrap_replicates, study.config.seed)
    write_report(study.folder, study.pair, report)


def write_report(folder: Path, pair: str, report: Any) -> None:
    """All files of one device."""
    from pipelines.outputs import write_json
    from pipelines.reporting import plots
    from pipelines.reporting.page import png
    from pipelines.reporting.self_drafting_plots import grid_and_efficiency

    quality, timing, origin = report.quality(), report.timing(), report.measured.origin
    capped = " The time cap ended the study early." if timing["capped"] else ""
    text = [
        f"# Drafting without a draft model on {pair}",
        f"{timing['prompts']} test prompts; two arms are compared on what both decoded. DE: tokens committed a "
        "pass; HR: share of passes with candidates; AL: tokens committed in those. Brackets are 95 % bootstrap intervals over "
        "documents. "
        f"{measured_on(origin)}{capped}",
        *(f"## {row['setting']}\n\n{arms(row, quality)}" for row in timing["settings"]),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "self_drafting.json", {"quality": quality, "timing": timing, "provenance": origin})
    (folder / "self_drafting.png").write_bytes(png(plots.draw(grid_and_efficiency, timing, quality)))
    (folder / "self_drafting.md").write_text("\n\n".join(text) + "\n")
    print(folder / "self_drafting.md")


def arms(row: dict[str, Any], quality: dict[str, Any]) -> str:
    """One sampling setting."""
    counts = {count["arm"]: count for count in quality["counts"] if count["setting"] == row["setting"]}
    lines = []
    for arm in row["arms"]:
        count = counts.get(arm["arm"])
        cells = ["–"] * 6
        if count is not None:
            length = "–" if count["accept_length"] is None else f"{count['accept_length']:.2f}"
            cells = [f"{count['decoding_efficiency']:.2f}", f"{count['hit_rate']:.2f}", length]
            cells += [f"{count['guessed']:.1f}", f"{count['candidates']:.1f}", f"{arm['upkeep']['value']:.1%}"]
        lines.append([arm["arm"], *cells, times(arm["speedup"])])
    return table(HEADER, lines)
