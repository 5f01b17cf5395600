"""Stage ``report``: turn one device's measurements into tables, plots and one HTML page.

    python -m pipelines report --pair pystdlib --device data/device.json data/pystdlib data/pystdlib/reports

Reads what the stages left of this device in the pair's data folder; what was not measured is left out, and said. Writes a folder
named after the device: ``quality.json`` (deterministic counts, predictors), ``timing.json`` (times, wall-clock but for what it
calls virtual, with 95 % intervals over documents), ``index.html`` (one page, offline) and its plots.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.parameters import add_pair_arguments, load_parameters
from predictors.config import Checked, Count, Whole

if TYPE_CHECKING:
    from pipelines.reporting.inputs import Inputs, Section

QUALITY, TIMING, PAGE = "quality.json", "timing.json", "index.html"
LEFT_OUT = {  # section -> where its measurement would be, and what it is
    "branches": ("measured", "branch-parallel arm"),
    "verifiers": ("verifiers", "comparison of verification rules"),
    "selection": ("selection", "measurement of selectors"),
    "stopping": ("measured", "stop rule"),
    "self_drafting": ("measured", "method without a draft model"),
    "replay": ("replay", "replay"),
    "release": ("trials", "tuning or trial"),
    "latency": ("latency", "latency profile"),
    "heads": ("fit", "head"),
}


@dataclass(frozen=True)
class ReportConfig(Checked):
    """Section ``report``: the bootstrap's replicates and seed."""

    bootstrap_replicates: Count = 2000
    seed: Whole = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("data", type=Path, help="the pair's data folder, with a folder of every stage")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.reporting.branch_folder import BranchArms, read_timelines
    from pipelines.reporting.headline import headline, title
    from pipelines.reporting.inputs import Inputs, read_record
    from pipelines.reporting.learned import learned
    from pipelines.reporting.plots import draw
    from pipelines.reporting.quality_report import QualityReport
    from pipelines.reporting.report_page import png, render
    from pipelines.reporting.speed_plots import speed_figures
    from pipelines.reporting.timeline_plots import timeline_figure
    from pipelines.reporting.timing_report import TimingReport

    config = load_parameters(ReportConfig, args.pair, "report", args.params)
    inputs = Inputs(args.data, read_device(args.device)["slug"], config.bootstrap_replicates, config.seed)
    measured = inputs.measured
    quality = QualityReport(measured.main, *inputs.drawn).build()
    timing = TimingReport(measured.main, *inputs.drawn).build()
    figures = draw(speed_figures, quality, timing)
    said = {}
    for name, section in _sections(inputs).items():
        quality[name] = None if section is None else section.quality()
        timing[name] = None if section is None else section.timing()
        if section is not None:
            timing["bars"] += timing[name].pop("bars", [])
            figures |= draw(section.figures, quality[name], timing[name])
            said[name] = section.sentences(quality[name], timing[name])
    quality["learned"] = learned(args.data)
    timelines = BranchArms(measured).drawn(read_timelines(inputs.of("measured"))) if timing["branches"] else {}
    if timelines:
        figures["timelines"] = draw(timeline_figure, timelines)
    timing |= {"provenance": measured.origin, "headline": headline(timing), "title": title(timing)}
    quality["provenance"] = {key: value for key, value in measured.origin.items() if key != "date"}
    folder = args.output / inputs.device
    folder.mkdir(parents=True, exist_ok=True)
    images = {name: png(figure) for name, figure in figures.items()}
    for name, data in images.items():
        (folder / f"{name}.png").write_bytes(data)
    facts = read_record(args.data / "pair" / "pair.json")
    small = _size_in_words(args.data / "pair")
    (folder / PAGE).write_text(render(timing, quality, facts, images, small, timelines, said))
    write_json(folder / QUALITY, quality)
    write_json(folder / TIMING, timing)
    print("\n".join([str(folder / PAGE), *timing["headline"]]))
    for name, (stage, what) in LEFT_OUT.items():
        if timing[name] is None:
            print(f"no {what} of {inputs.device} in {args.data / stage}: its section is left out")


def _sections(inputs: "Inputs") -> "dict[str, Section | None]":
    """By name; ``None`` where nothing was measured."""
    from pipelines.reporting.branch_report import BranchReport
    from pipelines.reporting.heads_report import HeadsReport
    from pipelines.reporting.latency_report import LatencyReport
    from pipelines.reporting.release_report import ReleaseReport
    from pipelines.reporting.replay_report import ReplayReport
    from pipelines.reporting.selection_report import SelectionReport
    from pipelines.reporting.self_drafting_report import SelfDraftingReport
    from pipelines.reporting.stopping_report import StoppingReport
    from pipelines.reporting.verifier_report import VerifierReport

    return {
        "branches": BranchReport.read(inputs),
        "heads": HeadsReport.read(inputs),
        "latency": LatencyReport.read(inputs),
        "release": ReleaseReport.read(inputs),
        "replay": ReplayReport.read(inputs),
        "selection": SelectionReport.read(inputs),
        "self_drafting": SelfDraftingReport.read(inputs),
        "stopping": StoppingReport.read(inputs),
        "verifiers": VerifierReport.read(inputs),
    }


def _size_in_words(pair_folder: Path) -> str:
    """Parameters of the built-in pair's trained target, from its weights file."""
    weights = pair_folder / "small" / "model.safetensors"
    if not weights.is_file():
        return "small"
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        shapes: list[Any] = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 (not a dict)
    return f"{sum(map(math.prod, shapes)) / 1e6:.1f} M parameter"
