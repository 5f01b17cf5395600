"""Stage of the studies: turn the full comparison of verification rules into JSON, plots and Markdown tables.

Writes a folder named after the device: ``verifiers.md``, ``verifiers.json`` and three plots.
"""

import argparse
from pathlib import Path
from typing import Any

from pipelines.measuring.names import PLAIN
from pipelines.measuring.provenance import measured_on
from pipelines.studies.measured import add_arguments as add_arguments
from pipelines.studies.measured import read_study


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.verifier_folder import read_comparison
    from pipelines.reporting.verifier_report import VerifierReport

    study = read_study(args, "verifiers_report")
    folder = study.records / study.folder.name
    comparison = read_comparison(folder, study.measured)
    if comparison is None:
        raise ValueError(f"{folder} holds no finished comparison: run the verifiers stage first.")
    report = VerifierReport(comparison, study.config.bootstrap_replicates, study.config.seed)
    write_report(study.folder, study.pair, report)


def write_report(folder: Path, pair: str, report: Any) -> None:
    """All files of one device."""
    from pipelines.outputs import write_json
    from pipelines.reporting import plots, verifier_plots
    from pipelines.reporting.page import png
    from pipelines.studies.verifier_tables import VerifierTables

    comparison = report.comparison
    quality, timing = report.quality(), report.timing()
    sections = VerifierTables(comparison, report).sections()
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "verifiers_block_efficiency": plots.draw(verifier_plots.block_efficiency_by_rule, quality),
        "verifiers_speed": plots.draw(verifier_plots.speed_by_rule, timing),
        "verifiers_acceptance": plots.draw(verifier_plots.acceptance_by_depth, quality),
    }
    for name, figure in figures.items():
        (folder / f"{name}.png").write_bytes(png(figure))
    record = {"quality": quality, "timing": timing, "provenance": comparison.origin}
    write_json(folder / "verifiers.json", record)
    text = [
        f"# Verification rules on {pair}",
        introduction(quality, timing, comparison),
        report.sentences(quality, timing)[0],
    ]
    text += [f"## {title}\n\n{body}" for title, body in sections.items()]
    text += [f"![{name}]({name}.png)" for name in figures]
    (folder / "verifiers.md").write_text("\n\n".join(text) + "\n")
    print(folder / "verifiers.md")
    print(report.sentences(quality, timing)[0])


def introduction(quality: dict[str, Any], timing: dict[str, Any], comparison: Any) -> str:
    """What the numbers are and where they come from."""
    plain = comparison.decoding[comparison.decoding["verifier"] == PLAIN]
    rate = plain["tokens"].sum() / plain["seconds"].sum()
    capped = " The time cap ended the study early." if quality["capped"] else ""
    return (
        f"{quality['roots']} matched roots of {quality['documents']} test documents over {len(comparison.settings)} sampling "
        f"settings; {timing['prompts']} test prompts decoded at every timed setting, two arms compared on what both decoded. "
        "Brackets are 95 % bootstrap intervals "
        "over documents. Shapes were chosen on validation prompts, at each setting, once for block efficiency and once for "
        f"speed; all slices share the choice. Plain decoding: {rate:.1f} tokens/s. `hsd` is `block` and `match` is `nss` under "
        f"another name. {measured_on(comparison.origin)}{capped}"
    )
