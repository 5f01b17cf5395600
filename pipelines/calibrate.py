"""Stage ``calibrate``: calibrate a trained predictor on validation rows and measure it on held-out documents."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from pipelines.head_folder import SavedHead
    from predictors.latency.serving import Serving
    from predictors.training.calibrate import CalibrateConfig
    from predictors.training.decision import Costs
    from predictors.training.label_table import LabelTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="name of the trained predictor")
    parser.add_argument("labels", type=Path, help="label table the predictor was trained on")
    parser.add_argument("head", type=Path, help="folder of the trained predictor")
    parser.add_argument("output", type=Path, help="JSON file to write")
    parser.add_argument(
        "--section", default="calibrate", help="section of the pair's parameters (default: %(default)s)"
    )
    parser.add_argument("--device", type=Path, help="JSON file of the device stage; needed without a draft_cost")
    parser.add_argument("--latency", type=Path, help="folder of the latency stage; needed without a draft_cost")


def run(args: argparse.Namespace) -> None:
    from pipelines.head_folder import read_head
    from pipelines.outputs import file_sha256, write_json
    from pipelines.reporting.calibration_plots import confusion_figure, reliability_figure
    from pipelines.tracking import Tracking
    from predictors.latency.serving import on_card
    from predictors.training.calibrate import CalibrateConfig
    from predictors.training.label_table import read_labels

    config = load_parameters(CalibrateConfig, args.pair, args.section, args.params)
    tracking = Tracking(args.pair)
    head, table = read_head(args.head), read_labels(args.labels)
    if file_sha256(args.labels) != head.facts["labels_sha256"]:
        raise ValueError(
            f"{args.head} was trained on another label table than {args.labels}. Run the train stage again."
        )
    config, costs = with_measured_costs(config, args, table)
    record = calibrated_record(head, table, config, costs, args.predictor) | on_card(served_here(args))
    write_json(args.output, record)
    metrics = record["test"]["metrics"]
    figures = {
        "reliability.png": reliability_figure(metrics),
        "confusion.png": confusion_figure(metrics, record["classes"]),
    }
    tracking.log(tracking.run_of(head.sha256, args.predictor), _tracked(record, args.section), figures)
    _print_summary(record)


def calibrated_record(
    head: "SavedHead", table: "LabelTable", config: "CalibrateConfig", costs: "Costs", predictor: str
) -> dict[str, Any]:
    """Calibrate a head and describe it: what export reads."""
    from predictors.training.calibrate import calibrate

    shares = head.facts["class_shares"]
    made = calibrate(
        head.network, head.spec, shares["training"], shares["natural"], table, config, costs, head.target.name
    )
    return made.record | {
        "predictor": predictor,
        "feature_set": head.spec.feature_set,
        "gamma": head.spec.gamma,
        "sampling_temperature": head.facts["temperature"],
        "head_sha256": head.sha256,
        **{name: head.facts[name] for name in ("labels_sha256", "traces_sha256", "contract_sha256")},
    }


def served_here(args: argparse.Namespace) -> "Serving | None":
    """How this device's profile says that the pair is served; ``None`` where no profile is named."""
    from predictors.latency import read_profile

    if args.device is None or args.latency is None:
        return None
    return read_profile(args.latency / f"{read_device(args.device)['slug']}.json").serving


def with_measured_costs(
    config: "CalibrateConfig", args: argparse.Namespace, table: "LabelTable"
) -> tuple["CalibrateConfig", "Costs"]:
    """``config`` with a draft pass's cost on this machine, unless it says, and what rounds cost here: of chains midway through
    the contexts that the labels speak of, of branch-parallel decoding on average over the measured contexts among those."""
    from predictors.latency import draft_cost, round_costs
    from predictors.training.decision import Costs

    if config.draft_cost is not None:
        return config, Costs(config.draft_cost)
    if args.device is None or args.latency is None:
        raise ValueError("calibrate.draft_cost is not set: give --device and --latency to take it from the profile.")
    device = read_device(args.device)["slug"]
    meaning = table.metadata
    served = meaning.capture_contract("label table: contract").serving_range
    context = (served.min_context + served.max_context) / 2
    profile = read_device_profile(args.latency, device)
    sampled = meaning.temperature > 0
    measured = map(float, profile.table("target").axes["context"])
    contexts = [place for place in measured if served.min_context <= place <= served.max_context] or [context]
    costs = round_costs(profile, meaning.gamma, contexts, meaning.feature_spec("paper").state_size, sampled)
    if config.decoding == "chain":  # in passes over a whole chain
        cost = draft_cost(profile, meaning.gamma, context, sampled)
        return replace(config, draft_cost=cost), Costs(cost, decision=costs.decision / costs.passes[-1])
    return replace(config, draft_cost=costs.draft), Costs(costs.draft, costs.passes, decision=costs.decision)


def _tracked(record: dict[str, Any], section: str) -> dict[str, float | None]:
    """The record's figures as flat MLflow metrics; a subsection of ``calibrate`` prefixes them."""
    test = record["test"]
    known = ("accuracy", "mean_absolute_error", "macro_f1", "macro_auc", "nll", "brier", "ece")
    names = [name for name in known if name in test["metrics"]["head"]]
    prefix = "".join(f"{part}_" for part in section.split(".")[1:])
    metrics = {
        **{f"test_{name}": test["metrics"]["head"][name] for name in names},
        **{f"test_{name}_uncalibrated": test["metrics"]["head_uncalibrated"][name] for name in names},
        **{f"test_value_{policy}": entry["value"] for policy, entry in test["decision"].items()},
        "test_length_accuracy_head": test["decision"]["head"]["length_accuracy"],
        "calibration_temperature": record["calibration"]["temperature"],
        "validation_value_head": record["validation"]["decision"]["head"],
    }
    return {prefix + name: value for name, value in metrics.items()}


def _print_summary(record: dict[str, Any]) -> None:
    test = record["test"]
    for name, metrics in test["metrics"].items():
        area = metrics["macro_auc"]
        print(
            f"{name:>18}: macro AUC {'undefined' if area is None else f'{area:.3f}'}, accuracy {metrics['accuracy']:.3f}, "
            f"macro F1 {metrics['macro_f1']:.3f}, ECE {metrics['ece']:.3f}"
            + (f", off by {metrics['mean_absolute_error']:.2f} tokens" if "mean_absolute_error" in metrics else "")
        )
    values = ", ".join(f"{name} {entry['value']:.3f}" for name, entry in test["decision"].items())
    print(f"tokens per target-pass equivalent at draft cost {record['draft_cost']:.3f}: {values}")
    right = ", ".join(f"{name} {entry['length_accuracy']:.3f}" for name, entry in test["decision"].items())
    print(f"rounds in which exactly the accepted tokens are submitted: {right}")


if __name__ == "__main__":
    from pipelines.cli import main

    main(["calibrate", *sys.argv[1:]])
