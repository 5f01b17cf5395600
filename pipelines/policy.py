"""Stage ``policy``: a first controller for branch-parallel decoding, for its own rounds to be learned from.

Labels the given traces, trains and calibrates a head on them and writes its bundle. The next traces probe it
(`trace_collection.probe`), so that the head trained on all of them knows the rounds it will be served. Nothing of this stage is
tracked or released.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.parameters import add_pair_arguments, load_parameters


@dataclass(frozen=True)
class PolicyConfig:
    """Section ``policy``: the ``predictor`` of section ``train``; costs from section ``calibrate.branches``."""

    predictor: str = "extended"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("traces", type=Path, nargs="+", help="folders of round traces, all of one pair and gamma_max")
    parser.add_argument("output", type=Path, help="bundle folder to write")
    parser.add_argument("--device", type=Path, help="JSON file of the device stage; needed without a draft_cost")
    parser.add_argument("--latency", type=Path, help="folder of the latency stage; needed without a draft_cost")


def run(args: argparse.Namespace) -> None:
    from predictors.training.fit import TrainConfig, fit

    from pipelines.calibrate import calibrated_record, served_here, with_measured_costs
    from pipelines.head_card import build_card, selection
    from pipelines.head_folder import read_head, write_head
    from pipelines.outputs import file_sha256
    from predictors.bundle import write_bundle
    from predictors.latency.serving import on_card
    from predictors.training.calibrate import CalibrateConfig
    from predictors.training.label_table import read_labels
    from predictors.training.labels import LabelConfig, write_labels
    from predictors.training.trace_table import TraceTable

    name = load_parameters(PolicyConfig, args.pair, "policy", args.params).predictor
    config = load_parameters(TrainConfig, args.pair, f"train.{name}", args.params)
    costs = load_parameters(CalibrateConfig, args.pair, "calibrate.branches", args.params)
    labelling = load_parameters(LabelConfig, args.pair, "labels", args.params)
    with TemporaryDirectory() as place:
        labels = Path(place) / "labels.parquet"
        write_labels([TraceTable(folder) for folder in args.traces], labelling, labels)
        table, digest = read_labels(labels), file_sha256(labels)
        write_head(Path(place) / name, name, fit(table, config), config, table.metadata, digest)
        head = read_head(Path(place) / name)
        record = calibrated_record(head, table, *with_measured_costs(costs, args, table), name)
        record |= on_card(served_here(args))
    decoder = {"preset": "specbranch", "gamma": head.spec.gamma}
    values = {name: record["validation"]["decision"]["head"]}
    write_bundle(
        args.output,
        build_card(head, record, selection(name, values, {name: record}), decoder),
        head.network.state_dict(),
    )
    print(
        f"{args.output}: trained on {record['rows']['train']} rows, {values[name]:.3f} tokens per target-pass equivalent"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["policy", *sys.argv[1:]])
