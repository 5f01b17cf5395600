"""Stage of the studies: the grid of MCSD's experiments (widths, depths, k-configurations, static and dynamic) in tables.

Writes a folder named after the device: ``stopping.md`` and ``stopping.json``.
"""

from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import measured_on

HEADER = (
    "| drafted | α | tokens per target pass | levels a round | speed-up over plain | gain over the best static chain |\n"
    "|---|---|---|---|---|---|"
)


def main() -> None:
    """Read the measurement, write the report."""
    from pipelines.reporting.stopping_folder import read_stopping
    from pipelines.reporting.stopping_report import StoppingReport
    from pipelines.studies.measured import read_measured

    study = read_measured("stopping", "stopping_report", __doc__, read_stopping)
    report = StoppingReport(study.results, study.config.bootstrap_replicates, study.config.seed)
    write_report(study.folder, study.pair, report)


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
