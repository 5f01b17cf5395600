"""Stage ``labels``: turn round traces into the label table of the H-RAD head.

Writes ``hrad.parquet`` and its class counts, ``hrad.json``.
"""

import argparse
from pathlib import Path

from pipelines.parameters import add_pair_arguments, load_parameters

TABLE, COUNTS = "hrad.parquet", "hrad.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("traces", type=Path, nargs="+", help="folders of round traces, all of one pair and gamma_max")
    parser.add_argument("output", type=Path, help="folder to write")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import replacing, write_json
    from predictors.training.labels import LabelConfig, traces_sha256, write_labels
    from predictors.training.trace_table import TraceTable

    config = load_parameters(LabelConfig, args.pair, "labels", args.params)
    sets = [TraceTable(folder) for folder in args.traces]
    with replacing(args.output / TABLE) as partial:
        report = write_labels(sets, config, partial).to_json()
    facts = {"gamma": config.gamma, "temperature": config.temperature, "traces_sha256": traces_sha256(sets)}
    write_json(args.output / COUNTS, report | facts)
    for split, classes in report["classes"].items():
        print(f"{split}: {report['rows'][split]} rows from {report['documents'][split]} documents, {classes}")
    print(f"dropped: {report['dropped']}")
