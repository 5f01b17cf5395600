"""Stage ``trial``: time an exported bundle on held-out documents, and let the gate judge it over plain and static decoding.

Writes a folder named after the device: ``decodes.parquet`` and ``rounds.parquet`` (timed, interleaved), ``provenance.json`` and
``verdict.json``, the gate's verdict with its bounds and the evidence, which ``draftwright promote --evidence`` reads. Nothing is
promoted here. Sampling settings at which stage ``measure`` timed the bundle on as many prompts are read from its table, not timed
again; if it has all of them, no table is written. This is the first look of the gate's plan, and a stage that is run again is the
first look again. An interrupted trial goes on where it stopped.

    draftwright trial --pair smollm2 data/device.json data/smollm2/pair data/smollm2/prompts
        data/smollm2/bundles/hrad data/smollm2/trials/hrad --latency data/smollm2/latency --measured data/smollm2/measured
"""

import argparse
from pathlib import Path

from pipelines.gate.attempt import attempt
from pipelines.gate.conditions import judged
from pipelines.gate.plan import load_plan
from pipelines.gate.verdict import CHALLENGER, VERDICT, lines
from pipelines.measuring.bench import add_bench_arguments
from pipelines.outputs import write_json
from pipelines.places import read_device
from pipelines.terminal import brief


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundle", type=Path, help="folder of the bundle to try; its name is the predictor's")
    parser.add_argument(
        "--measured",
        type=Path,
        help="folder of stage measure: settings at which it timed the bundle are not timed again",
    )
    parser.add_argument("--tuning", type=Path, help="folder of stage tune, whose static chains are rivals, too")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    path = args.output / read_device(args.device)["slug"] / VERDICT
    _, bounds = load_plan(args.pair, args.params)
    evidence = attempt(args, args.bundle.name, {CHALLENGER: args.bundle})
    record = judged(evidence, bounds)
    write_json(path, record)
    print(path, brief(lines(record)), sep="\n")
