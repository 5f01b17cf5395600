"""Stage ``train``: train one predictor from the label table, tracked as one MLflow run."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from pipelines.parameters import add_pair_arguments, load_parameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="key under 'train:' of the pair")
    parser.add_argument("labels", type=Path, help="label table")
    parser.add_argument("output", type=Path, help="folder to write")


def run(args: argparse.Namespace) -> None:
    from predictors.training.fit import TrainConfig, fit

    from pipelines.head_folder import write_head
    from pipelines.outputs import file_sha256
    from pipelines.tracking import HEAD_TAG, Tracking
    from predictors.training.label_table import read_labels

    config = load_parameters(TrainConfig, args.pair, f"train.{args.predictor}", args.params)
    tracking = Tracking(args.pair)
    table, labels_sha256 = read_labels(args.labels), file_sha256(args.labels)
    tags = {
        "pair": args.pair,
        "predictor": args.predictor,
        "labels_sha256": labels_sha256,
        "traces_sha256": table.metadata.traces_sha256,
        "contract_sha256": table.metadata.contract_sha256,
    }
    parameters = asdict(config) | {"gamma": table.metadata.gamma, "temperature": table.metadata.temperature}
    with tracking.new_run(args.predictor, parameters, tags) as run_id:
        trained = fit(table, config, tracking.lightning_logger(run_id))
        head_sha256 = write_head(args.output, args.predictor, trained, config, table.metadata, labels_sha256)
        tracking.tag(run_id, **{HEAD_TAG: head_sha256})
    best = trained.history[trained.best_epoch]
    print(
        f"{args.predictor}: best of {len(trained.history)} epochs is {trained.best_epoch + 1}, "
        f"validation loss {best['val_loss']:.4f}, accuracy {best['val_accuracy']:.3f}"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["train", *sys.argv[1:]])
