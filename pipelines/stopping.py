"""Stage ``stopping``: time every rule that stops drafting beside the best static chain and fork.

Writes a folder named after the device: ``decoding.parquet`` (timed, interleaved decodes) and ``provenance.json``. An interrupted
measurement goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path

from pipelines.measuring.arm_stage import exported, measure_arms
from pipelines.measuring.bench import add_bench_arguments
from pipelines.parameters import load_parameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundles", type=Path, help="folder of exported bundles: all stop models in it are measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.measuring.names import STOPPERS
    from pipelines.measuring.stopping.names import DECODING
    from pipelines.measuring.stopping.study import StoppingConfig, StoppingStudy

    config = load_parameters(StoppingConfig, args.pair, "stopping", args.params)
    measure_arms(args, config, exported(args.bundles, STOPPERS, "stop model"), StoppingStudy, DECODING)


if __name__ == "__main__":
    from pipelines.cli import main

    main(["stopping", *sys.argv[1:]])
