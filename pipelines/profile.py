"""Stage ``latency``: measure the latency profile of the pair on this machine.

Writes one JSON file named after the device: tables of seconds with median and quartiles (`predictors.latency`), the settings they
were measured with and where they come from. Files of other devices stay. All cells of all tables are visited in one shuffled
order, in several sweeps (`runtime.latency.cells`); an interrupted measurement goes on after its last whole sweep.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.measuring.bench import Bench, add_bench_arguments, open_bench
from pipelines.parameters import load_parameters

if TYPE_CHECKING:
    from predictors.latency.tables import LatencyTable
    from runtime.latency import LatencyConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser, prompts=False)
    parser.add_argument("output", type=Path, help="folder to write; one file per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from predictors.latency.profile import LatencyProfile
    from runtime.latency import LatencyConfig

    config = load_parameters(LatencyConfig, args.pair, "latency", args.params)
    bench = open_bench(args, config, counts={})
    tables, notes = measure(bench, config)
    origin = bench.origin(args.pair) | {"notes": notes}
    settings = origin.pop("parameters")
    profile = LatencyProfile(tables, args.pair, settings, origin)
    path = args.output / f"{bench.device['slug']}.json"
    write_json(path, profile.to_record())
    bench.log.remove()
    bench.folder.rmdir()  # it held the log of this measurement alone
    for context in profile.tables["target"].axes["context"]:
        print(f"context {context}: a target pass takes as long as {profile.cost_ratio(context):.1f} draft steps")
    print(f"{path} (draftwright latency shows it whole)")


def measure(bench: Bench, config: "LatencyConfig") -> "tuple[dict[str, LatencyTable], list[str]]":
    """The tables by name, and notes on what the models' limits cut off."""
    from functools import partial
    from random import Random

    from tqdm import tqdm

    from pipelines.measuring.blocks import Blocks
    from runtime.latency import open_cells, sweep, tables_of

    rows = []
    with (
        open_cells(bench.pair, config) as (cells, notes),
        tqdm(total=config.visits * len(cells), desc="latency", unit="visit", mininterval=0.5) as bar,
    ):
        blocks = Blocks(bench.log, bar)
        for number in range(config.visits):
            order = Random(f"{config.seed}/{number}")
            work = partial(sweep, cells, order, config.warmup, config.calls, bar.update)
            rows += blocks.once(f"sweep/{number}", len(cells), work)
    return tables_of(rows), notes


if __name__ == "__main__":
    from pipelines.cli import main

    main(["profile", *sys.argv[1:]])
