"""Stage of the studies: the grid of MCSD's experiments (widths, depths, k-configurations, static and dynamic) in tables.

Writes a folder named after the device: ``stopping.md`` and ``stopping.json``.
"""

import argparse
from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import measured_on
from pipelines.reporting.intervals import percent, times
from pipelines.reporting.markdown import table
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study

HEADER = ["drafted", "α", "tokens per target pass", "levels a round", "speed-up over plain", "gain over the best chain"]


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.inputs import read_fitted
    from pipelines.reporting.stopping_report import StoppingReport

    study = read_study(args, "stopping_report")
    records = read_fitted(study.records, "stop")
    report = StoppingReport(study.measured, records, study.config.bootstrap_replicates, study.config.seed)
    write_report(study.folder, study.pair, report)


def write_report(folder: Path, pair: str, report: Any) -> None:
    """Both files of one device."""
    from pipelines.outputs import write_json

    origin = report.measured.origin
    settings = [report.setting(setting, chosen_only=False) for setting in report.measured.settings]
    text = [f"# Stop rules and drafted trees on {pair}", introduction(report.timing(), origin)]
    text += [f"## {row['setting']}\n\n{arms(row)}" for row in settings]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "stopping.json", {"settings": settings, "quality": report.quality(), "provenance": origin})
    (folder / "stopping.md").write_text("\n\n".join(text) + "\n")
    print(folder / "stopping.md")


def introduction(timing: dict[str, Any], origin: dict[str, Any]) -> str:
    """What the numbers are and where they come from."""
    capped = " The time cap ended the study early." if timing["capped"] else ""
    below = ""
    if timing["beta"] is not None:
        below = (
            f" A fork with a model's name ends where every chain's predicted acceptance is below {timing['beta']:g}."
        )
    return (
        f"{timing['prompts']} test prompts; two arms are compared on what both decoded. α is the share of drafted "
        "levels that was accepted. Brackets are 95 % bootstrap intervals over documents; the best static chain was chosen on "
        "validation prompts. Trees are verified by `traversal`, chains by `block`."
        f"{below} {measured_on(origin)}{capped}"
    )


def arms(row: dict[str, Any]) -> str:
    """One sampling setting."""
    lines = []
    for arm in row["arms"]:
        rolled_back = arm["rollback_rate"]["value"]
        alpha = "–" if rolled_back is None else f"{1 - rolled_back:.2f}"
        means = f"{arm['block_efficiency']['value']:.2f}", f"{arm['drafted_per_round']['value']:.1f}"
        lines.append([arm["arm"], alpha, *means, times(arm["speedup"]), percent(arm["gain"])])
    return table(HEADER, lines)
