"""Stage ``self_drafting``: time methods without a draft model beside plain decoding, the best static chain and prompt lookup.

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
    parser.add_argument(
        "bundles", type=Path, help="folder of exported bundles: all methods without a draft in it are measured"
    )
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.measuring.names import METHODS
    from pipelines.measuring.self_drafting.names import DECODING
    from pipelines.measuring.self_drafting.study import SelfDraftingConfig, SelfDraftingStudy

    config = load_parameters(SelfDraftingConfig, args.pair, "self_drafting", args.params)
    measure_arms(args, config, exported(args.bundles, METHODS, "method without a draft"), SelfDraftingStudy, DECODING)


if __name__ == "__main__":
    from pipelines.cli import main

    main(["self_drafting", *sys.argv[1:]])
