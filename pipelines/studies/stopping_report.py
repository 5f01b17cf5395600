"""Stage of the studies: the grid of MCSD's experiments (widths, depths, k-configurations, static and dynamic) in tables.

Writes a folder named after the device: ``stopping.md`` and ``stopping.json``.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import measured_on
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.report import ReportConfig

HEADER = (
    "| drafted | α | tokens per target pass | levels a round | speed-up over plain | gain over the best static chain |\n"
    "|---|---|---|---|---|---|"
)


def main() -> None:
    """Read the measurement, write the report."""
    from pipelines.reporting.stopping_folder import read_stopping
    from pipelines.reporting.stopping_report import StoppingReport

    parser = argparse.ArgumentParser(prog="python -m pipelines.studies.stopping_report", description=__doc__)
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("stopping", type=Path, help="folder of the study's stopping stage")
    parser.add_argument("stoppers", type=Path, help="folder of the stop models' records")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    args = parser.parse_args()
    config = load_parameters(ReportConfig, args.pair, "stopping_report", args.params)
    device = json.loads(args.device.read_text())["slug"]
    results = read_stopping(args.stopping / device, args.stoppers)
    if results is None:
        raise SystemExit(f"{args.stopping / device} holds no finished measurement: run the stopping stage first.")
    report = StoppingReport(results, config.bootstrap_replicates, config.seed)
    write_report(args.output / device, args.pair, report)


def write_report(folder: Path, pair: str, report: Any) -> None:
    """Both files of one device."""
    from pipelines.outputs import write_json

    origin = report.results.origin
    settings = [
        {"setting": setting, **report.setting(setting, chosen_only=False)}
        for setting in sorted(report.test["setting"].unique())
    ]
    text = [f"# Stop rules and drafted trees on {pair}", introduction(report.timing(), origin)]
    text += [f"## {row['setting']}\n\n{table(row)}" for row in settings]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "stopping.json", {"settings": settings, "quality": report.quality(), "provenance": origin})
    (folder / "stopping.md").write_text("\n\n".join(text) + "\n")
    print(folder / "stopping.md")


def introduction(timing: dict[str, Any], origin: dict[str, Any]) -> str:
    """What the numbers are and where they come from."""
    capped = " The time cap ended the study early." if timing["capped"] else ""
    return (
        f"{timing['prompts']} test prompts, interleaved and paired, all arms with one seed per prompt. α is the share of drafted "
        "levels that was accepted. Brackets are 95 % bootstrap intervals over documents; the best static chain was chosen on "
        "validation prompts. Trees are verified by `traversal`, chains by `block`. A fork with a model's name ends where every "
        f"chain's predicted acceptance is below {timing['beta']:g}. {measured_on(origin)}{capped}"
    )


def table(row: dict[str, Any]) -> str:
    """One sampling setting."""
    lines = [HEADER]
    for arm in row["arms"]:
        rolled_back, gain, speed = arm["rollback_rate"]["value"], arm["gain"], arm["speedup"]
        alpha = "–" if rolled_back is None else f"{1 - rolled_back:.2f}"
        lines.append(
            f"| {arm['arm']} | {alpha} | {arm['block_efficiency']['value']:.2f} | {arm['drafted_per_round']['value']:.1f} | "
            f"{speed['value']:.2f} ({speed['low']:.2f}–{speed['high']:.2f}) | "
            f"{gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
