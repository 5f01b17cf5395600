"""Stage ``stopping``: time every rule that stops drafting beside the best static chain and fork.

Writes a folder named after the device: ``decoding.parquet`` (timed, interleaved decodes) and ``provenance.json``. An interrupted
measurement goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path

from pipelines.measuring.bench import add_bench_arguments, open_bench
from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.parameters import load_parameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundles", type=Path, help="folder of exported bundles: all stop models in it are measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.measuring.decoding_table import DECODES, write_table
    from pipelines.measuring.stopping.names import DECODING, STOPPERS
    from pipelines.measuring.stopping.study import StoppingConfig, StoppingStudy
    from pipelines.outputs import write_json
    from predictors.bundle import CARD, bundle_hash

    config = load_parameters(StoppingConfig, args.pair, "stopping", args.params)
    bundles = {name: args.bundles / name for name in STOPPERS if (args.bundles / name / CARD).is_file()}
    if not bundles:
        raise ValueError(f"no stop model under {args.bundles}. Run the stopper stage (dvc repro) first.")
    hashes: dict[str, str | None] = {f"{name}_sha256": bundle_hash(folder) for name, folder in bundles.items()}
    prompts = {VALIDATION: config.validation_prompts, TEST: config.test_prompts}
    bench = open_bench(args, config, prompts, **hashes)
    study = StoppingStudy(bench.pair, config, bundles, bench.prompts, bench.log)
    rows = study.run()
    write_table(bench.folder / DECODING, rows, DECODES)
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair) | {"capped": study.capped})
    bench.log.remove()
    print(f"{bench.folder}: {len(rows)} decodes" + (", ended early by max_minutes" if study.capped else ""))


if __name__ == "__main__":
    from pipelines.cli import main

    main(["stopping", *sys.argv[1:]])
