"""Stage of the studies: how many traces are enough and which of their features earn their storage, in tables and plots.

Writes a folder named after the device: ``enough.md``, ``enough.json``, ``enough_curves.png`` and ``enough_layers.png``.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.parameters import PARAMETERS, add_pair_arguments, load_parameters, read_section


@dataclass(frozen=True)
class EnoughReportConfig:
    """Section ``enough_report``: ``seed`` by which training seeds are drawn again."""

    seed: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument(
        "--main", type=Path, default=PARAMETERS, help="the main pipeline's parameters: what it collects"
    )
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("learning_curves", type=Path, help="output of the learning_curves stage")
    parser.add_argument("layers", type=Path, help="output of the layers stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    import pandas as pd

    from pipelines.studies.enough.study_folder import read_fits

    config = load_parameters(EnoughReportConfig, args.pair, "enough_report", args.params)
    device = read_device(args.device)["slug"]
    fits: dict[str, pd.DataFrame] = {}
    origins: dict[str, Any] = {}
    for name, folder in (("learning_curves", args.learning_curves), ("layers", args.layers)):
        fits[name], origins[name] = read_fits(folder / device)
    traces = [read_section(args.pair, "traces", path) for path in (args.main, args.params)]
    summary = summarised(fits, origins, traces[0], traces[1], config)
    write_report(args.output / device, args.pair, summary)


def summarised(
    fits: dict[str, Any], origins: dict[str, Any], main: Any, study: Any, config: EnoughReportConfig
) -> dict[str, Any]:
    """What ``enough.json`` holds; ``main`` and ``study``: sections ``traces`` of either pipeline."""
    from pipelines.studies.enough.summary import layers, learning_curves, present_shares

    return {
        "curves": learning_curves(fits["learning_curves"], config.seed),
        "layers": layers(fits["layers"], config.seed),
        "present": present_shares(main, study, origins["learning_curves"]["parameters"]),
        "provenance": origins,
    }


def write_report(folder: Path, pair: str, summary: dict[str, Any]) -> None:
    """All files of one device."""
    from pipelines.outputs import write_json
    from pipelines.reporting import plots
    from pipelines.reporting.report_page import png
    from pipelines.studies.enough.plots import curves, features

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "enough.json", summary)
    (folder / "enough_curves.png").write_bytes(png(plots.draw(curves, summary)))
    (folder / "enough_layers.png").write_bytes(png(plots.draw(features, summary)))
    (folder / "enough.md").write_text("\n\n".join(sections(pair, summary)) + "\n")
    print(folder / "enough.md")


def sections(pair: str, summary: dict[str, Any]) -> list[str]:
    """The page, part by part."""
    from pipelines.studies.enough.tables import curve_table, feature_table, recommended_features, recommended_sizes

    curves, layers = (summary["provenance"][name] for name in ("learning_curves", "layers"))
    return [
        f"# How many traces are enough on {pair}",
        "Models are trained as the main pipeline trains them, on shares of the training documents of larger traces, and measured "
        "on all test documents. Brackets are 95 % bootstrap intervals over test documents, then the least and most of the seeds. "
        "Enough is the least share at which, and at all larger ones, no metric is surely worse than with all: the interval of "
        "what is lost, over documents and seeds, reaches 0. " + trained_on(curves),
        "## How many\n\n" + recommended_sizes(summary),
        "## Which features\n\nOf the sets of features that are not surely worse than all, that of fewest bytes. "
        + trained_on(layers),
        recommended_features(summary),
        *(f"## {name} by share\n\n{curve_table(curve)}" for name, curve in summary["curves"].items()),
        *(f"## {name} by features\n\n{feature_table(study)}" for name, study in summary["layers"].items()),
    ]


def trained_on(origin: dict[str, Any]) -> str:
    """Seeds, machine of the prices, commit and date in words."""
    changed = " with uncommitted changes" if origin["uncommitted_changes"] else ""
    return (
        f"{origin['parameters']['seeds']} seeds, prices of {origin['device']['slug']}, commit "
        f"`{(origin['commit'] or 'unknown')[:12]}`{changed}, {origin['date']}."
    )
