"""Stage ``report``: turn one device's measurements into tables, plots and one HTML page.

Writes a folder named after the device: ``quality.json`` (deterministic counts, predictors), ``timing.json`` (times, wall-clock
but for what it calls virtual, with 95 % intervals over documents), ``index.html`` (one page, offline) and its plots.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from pipelines.reporting.branch_folder import Timelines
    from pipelines.reporting.measured_folder import Measured
    from predictors.latency import LatencyProfile

QUALITY, TIMING, PAGE = "quality.json", "timing.json", "index.html"
LABEL_COUNTS = "hrad.json"


@dataclass(frozen=True)
class ReportConfig:
    """Section ``report``: the bootstrap's replicates and seed."""

    bootstrap_replicates: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bootstrap_replicates < 1:
            raise ValueError(f"bootstrap_replicates must be >= 1, got {self.bootstrap_replicates}.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("measured", type=Path, help="folder of the measure stage")
    parser.add_argument("calibration", type=Path, help="folder of calibration records")
    parser.add_argument("pair_folder", type=Path, help="folder of the pair stage")
    parser.add_argument("labels", type=Path, help="folder of the labels stage")
    parser.add_argument(
        "verifiers", type=Path, help="folder of the verifiers stage; its section is left out without it"
    )
    parser.add_argument("latency", type=Path, help="folder of the latency stage; its section is left out without it")
    parser.add_argument(
        "selection", type=Path, help="folder of the selection stage; its section is left out without it"
    )
    parser.add_argument("selectors", type=Path, help="folder of the selectors' records")
    parser.add_argument("stoppers", type=Path, help="folder of the stop models' records")
    parser.add_argument("guessers", type=Path, help="folder of the records of how the target drafts for itself")
    parser.add_argument("replay", type=Path, help="folder of the replay stage; its section is left out without it")
    parser.add_argument("tuning", type=Path, help="folder of the tune stage")
    parser.add_argument("trials", type=Path, help="folder of the trial stage, one folder per bundle in it")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.reporting.branch_folder import BranchArms, read_timelines
    from pipelines.reporting.branch_report import BranchReport
    from pipelines.reporting.headline import headline, title
    from pipelines.reporting.latency_report import LatencyReport
    from pipelines.reporting.measured_folder import read_measured
    from pipelines.reporting.quality_report import QualityReport
    from pipelines.reporting.report_page import png, render
    from pipelines.reporting.timing_report import TimingReport

    config = load_parameters(ReportConfig, args.pair, "report", args.params)
    device = read_device(args.device)["slug"]
    measured = read_measured(args.measured / device)
    main, branches = measured.main, BranchArms(measured)
    timelines = branches.drawn(read_timelines(args.measured / device))
    facts = _read_json(args.pair_folder / "pair.json")
    calibration = {path.stem: _read_json(path) for path in sorted(args.calibration.glob("*.json"), reverse=True)}
    counts = args.labels / LABEL_COUNTS
    labels = _read_json(counts) if counts.is_file() else {}

    quality = QualityReport(main, config.bootstrap_replicates, config.seed).build(calibration, labels)
    timing = TimingReport(main, config.bootstrap_replicates, config.seed).build()
    path = args.latency / f"{device}.json"
    profile = read_device_profile(args.latency, device) if path.is_file() else None
    beside = BranchReport(branches, config.bootstrap_replicates, config.seed, profile)
    for name, section in ({"branches": beside} | _sections(args, device, config, measured)).items():
        quality[name] = None if section is None else section.quality()
        timing[name] = None if section is None else section.timing()
    timing["latency"] = None if profile is None else LatencyReport(main, profile).build()
    timing["bars"] += [] if timing["self_drafting"] is None else timing["self_drafting"].pop("bars")
    timing["bars"] += [] if timing["latency"] is None else timing["latency"].pop("bars")
    timing["provenance"] = measured.origin
    timing["headline"] = headline(timing)
    timing["title"] = title(timing)
    quality["provenance"] = {key: value for key, value in measured.origin.items() if key != "date"}
    folder = args.output / device
    images = {name: png(figure) for name, figure in _figures(timing, quality, profile, timelines).items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in images.items():
        (folder / f"{name}.png").write_bytes(data)
    (folder / PAGE).write_text(render(timing, quality, facts, images, _size_in_words(args.pair_folder), timelines))
    write_json(folder / QUALITY, quality)
    write_json(folder / TIMING, timing)
    print(folder / PAGE)
    print("\n".join(timing["headline"]))
    for line in _left_out(args, device, timing):
        print(line)


def _sections(args: argparse.Namespace, device: str, config: ReportConfig, measured: "Measured") -> dict[str, Any]:
    """The sections on measurements that may be missing, by name; ``None`` where one is."""
    from pipelines.measuring.names import METHODS, STOPPERS
    from pipelines.reporting.measured_folder import read_records
    from pipelines.reporting.release_folder import read_release
    from pipelines.reporting.release_report import ReleaseReport
    from pipelines.reporting.replay_folder import read_replay
    from pipelines.reporting.replay_report import ReplayReport
    from pipelines.reporting.selection_folder import read_selection
    from pipelines.reporting.selection_report import SelectionReport
    from pipelines.reporting.self_drafting_report import SelfDraftingReport
    from pipelines.reporting.stopping_report import StoppingReport
    from pipelines.reporting.verifier_folder import read_comparison
    from pipelines.reporting.verifier_report import VerifierReport

    drawn = config.bootstrap_replicates, config.seed
    decodes = measured.by_setting
    found: dict[str, tuple[Any, Any]] = {
        "verifiers": (VerifierReport, read_comparison(args.verifiers / device, measured)),
        "selection": (SelectionReport, read_selection(args.selection / device, args.selectors, measured)),
        "replay": (ReplayReport, read_replay(args.replay / device, {"measure": decodes})),
    }
    made = {name: None if results is None else report(results, *drawn) for name, (report, results) in found.items()}
    release = read_release(args.tuning, args.trials, device)
    made["release"] = None if release is None else ReleaseReport(release)
    stopping = StoppingReport(measured, read_records(args.stoppers, STOPPERS), *drawn)
    alone = SelfDraftingReport(measured, read_records(args.guessers, METHODS), *drawn)
    for name, report in (("stopping", stopping), ("self_drafting", alone)):
        made[name] = None if report.empty else report
    return made


def _left_out(args: argparse.Namespace, device: str, timing: dict[str, Any]) -> list[str]:
    """A line for every section without a measurement."""
    measured = {
        "branches": (args.measured / device, "arm that drafts beside the target", "says how to get one"),
        "verifiers": (args.verifiers / device, "comparison of verification rules", "is left out"),
        "selection": (args.selection / device, "measurement of selectors", "is left out"),
        "stopping": (args.measured / device, "stop rule", "is left out"),
        "self_drafting": (args.measured / device, "method without a draft model", "is left out"),
        "replay": (args.replay / device, "replay", "is left out"),
        "release": (args.trials, "tuning or trial", "is left out"),
        "latency": (args.latency, f"latency profile of {device}", "is left out"),
    }
    return [
        f"no {what} in {path}: its section {consequence}"
        for name, (path, what, consequence) in measured.items()
        if timing[name] is None
    ]


def _figures(
    timing: dict[str, Any], quality: dict[str, Any], profile: "LatencyProfile | None", timelines: "Timelines"
) -> dict[str, Any]:
    from pipelines.reporting import plots
    from pipelines.reporting.branch_plots import branch_speeds
    from pipelines.reporting.calibration_plots import confusion_figure, reliability_figure
    from pipelines.reporting.latency_plots import latency_figure
    from pipelines.reporting.prediction_plots import prediction_figure
    from pipelines.reporting.replay_plots import replayed_gains
    from pipelines.reporting.report_page import exported_predictor
    from pipelines.reporting.selection_plots import choices_by_slice, gains_by_rule
    from pipelines.reporting.stopping_plots import calibration_by_place, stop_gains
    from pipelines.reporting.timeline_plots import timeline_figure
    from pipelines.reporting.verifier_plots import acceptance_by_depth, block_efficiency_by_rule

    figures = {
        "speedup": plots.draw(plots.speedup_bars, timing),
        "sweep": plots.draw(plots.static_sweep, timing),
        "slices": plots.draw(plots.gain_by_slice, timing),
        "accepted": plots.draw(plots.accepted_histogram, quality),
        "shares": plots.draw(plots.time_shares, timing),
    }
    if quality["predictors"]:
        metrics = quality["predictors"][exported_predictor(timing, quality)]["metrics"]
        figures["confusion"] = plots.draw(confusion_figure, metrics)
        figures["reliability"] = plots.draw(reliability_figure, metrics)
    if timing["branches"]:
        figures["branches"] = plots.draw(branch_speeds, timing["branches"])
        if timelines:
            figures["timelines"] = plots.draw(timeline_figure, timelines)
    if quality["verifiers"]:
        figures["verifiers"] = plots.draw(block_efficiency_by_rule, quality["verifiers"])
        figures["acceptance"] = plots.draw(acceptance_by_depth, quality["verifiers"])
    if quality["stopping"]:
        figures["stops"] = plots.draw(stop_gains, timing["stopping"])
        if quality["stopping"]["models"]:
            figures["places"] = plots.draw(calibration_by_place, quality["stopping"])
    if quality["self_drafting"]:
        figures |= _self_drafting_figures(timing["self_drafting"], quality["self_drafting"])
    if timing["replay"]:
        figures["replay"] = plots.draw(replayed_gains, timing["replay"])
    if quality["selection"]:
        figures["selection"] = plots.draw(gains_by_rule, quality["selection"], timing["selection"])
        figures["choices"] = plots.draw(choices_by_slice, quality["selection"])
    if profile is not None:
        figures["latency"] = plots.draw(latency_figure, profile)
        figures["prediction"] = plots.draw(prediction_figure, timing["latency"]["prediction"])
    return figures


def _self_drafting_figures(timing: dict[str, Any], quality: dict[str, Any]) -> dict[str, Any]:
    from pipelines.reporting import plots
    from pipelines.reporting import self_drafting_plots as own

    figures = {
        "self_drafting": plots.draw(own.self_drafting_speeds, timing),
        "self_drafting_slices": plots.draw(own.self_drafting_slices, timing),
        "self_drafting_passes": plots.draw(own.self_drafting_passes, timing),
    }
    if quality["ways"]:
        figures["guesses"] = plots.draw(own.guesses_and_efficiency, quality)
    return figures


def _size_in_words(pair_folder: Path) -> str:
    """Parameters of the built-in pair's trained target, from its weights file (two or four bytes each)."""
    weights = pair_folder / "small" / "model.safetensors"
    if not weights.is_file():
        return "small"
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 (not a dict)
        count = sum(_product(part.get_shape()) for part in slices)
    return f"{count / 1e6:.1f} M parameter"


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). Run the stage that writes it again.") from error
    return record
