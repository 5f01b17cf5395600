"""Stage ``trial``: time an exported bundle on held-out documents, and let the gate judge it over plain and static decoding.

Writes a folder named after the device: ``decodes.parquet`` and ``rounds.parquet`` (timed, interleaved), ``provenance.json`` and
``verdict.json``, the gate's verdict with its bounds and the evidence, which ``draftwright promote --evidence`` reads. Nothing is
promoted here. An interrupted trial goes on where it stopped.

    draftwright trial --pair smollm2 data/device.json data/smollm2/pair data/smollm2/prompts
        data/smollm2/bundles/hrad data/smollm2/trials/hrad --latency data/smollm2/latency
"""

import argparse
from pathlib import Path

from pipelines.gate.plan import load_plan
from pipelines.gate.trial import attempt
from pipelines.gate.verdict import CHALLENGER, VERDICT, judged, lines
from pipelines.measuring.bench import add_bench_arguments
from pipelines.outputs import write_json
from pipelines.places import read_device
from pipelines.terminal import brief


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundle", type=Path, help="folder of the bundle to try; its name is the predictor's")
    latency_help = "folder of the latency stage: its profile of this device prices what is replayed"
    parser.add_argument("--latency", type=Path, required=True, help=latency_help)
    parser.add_argument("--tuning", type=Path, help="folder of stage tune, whose static chains are rivals, too")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    path = args.output / read_device(args.device)["slug"] / VERDICT
    _, bounds = load_plan(args.pair, args.params)
    evidence = attempt(args, args.bundle.name, {CHALLENGER: args.bundle})
    record = judged(evidence, bounds)
    write_json(path, record)
    print(path, brief(lines(record)), sep="\n")
