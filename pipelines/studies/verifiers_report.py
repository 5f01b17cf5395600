"""Stage of the studies: turn the full comparison of verification rules into JSON, plots and Markdown tables.

Writes a folder named after the device: ``verifiers.md``, ``verifiers.json`` and three plots.
"""

import argparse
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.measuring.names import PLAIN
from pipelines.measuring.provenance import numerics
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.report import ReportConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("comparison", type=Path, help="folder of the study's verifiers stage")
    parser.add_argument("measured", type=Path, help="folder of the study's measure_verifiers stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.reporting.measured_folder import read_measured
    from pipelines.reporting.verifier_folder import read_comparison
    from pipelines.reporting.verifier_report import VerifierReport

    config = load_parameters(ReportConfig, args.pair, "verifiers_report", args.params)
    device = read_device(args.device)["slug"]
    comparison = read_comparison(args.comparison / device, read_measured(args.measured / device))
    if comparison is None:
        raise ValueError(f"{args.comparison / device} holds no finished comparison: run the verifiers stage first.")
    report = VerifierReport(comparison, config.bootstrap_replicates, config.seed)
    write_report(args.output / device, args.pair, report)


def write_report(folder: Path, pair: str, report: Any) -> None:
    """All files of one device."""
    from pipelines.outputs import write_json
    from pipelines.reporting import plots, verifier_plots
    from pipelines.reporting.report_page import png
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
    origin = comparison.origin
    plain = comparison.decoding[comparison.decoding["verifier"] == PLAIN]
    rate = plain["tokens"].sum() / plain["seconds"].sum()
    capped = " The time cap ended the study early." if quality["capped"] else ""
    changed = " with uncommitted changes" if origin.get("uncommitted_changes") else ""
    return (
        f"{quality['roots']} matched roots of {quality['documents']} test documents over {len(comparison.settings)} sampling "
        f"settings; {timing['prompts']} test prompts decoded at every timed setting, two arms compared on what both decoded. "
        "Brackets are 95 % bootstrap intervals "
        "over documents. Shapes were chosen on validation prompts, at each setting, once for block efficiency and once for "
        f"speed; all slices share the choice. Plain decoding: {rate:.1f} tokens/s. `hsd` is `block` and `match` is `nss` under "
        f"another name. Measured on {origin['device']['slug']} ({numerics(origin)}, {origin['threads']} threads), commit "
        f"`{(origin['commit'] or 'unknown')[:12]}`{changed}, {origin['date']}.{capped}"
    )
