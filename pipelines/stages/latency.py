"""Stage ``latency``: measure the latency profile of the pair on this machine.

Writes one JSON file named after the device: tables of seconds with median and quartiles (`predictors.latency`), the settings they
were measured with and where they come from. Files of other devices stay. All cells of all tables are visited in one shuffled
order, in several sweeps (`runtime.latency.cells`); an interrupted measurement goes on after its last whole sweep.

Cells that no quiet machine would have measured (`predictors.latency.soundness`) are measured again with those they were compared
with. What is unsound even then, or other jobs that held the processor, stand in the profile as its noise.

    draftwright profile --pair smollm2 data/device.json data/smollm2/pair data/smollm2/latency
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from tqdm import tqdm

from pipelines.hardware import copy_bandwidth, joules, pass_bytes
from pipelines.measuring.bench import Bench, Blocks, add_bench_arguments, open_bench
from pipelines.outputs import write_json
from pipelines.parameters import load_parameters
from pipelines.places import warn_of_noise
from predictors.latency.profile import LatencyProfile, LatencyTable
from predictors.latency.soundness import Finding, findings, waiting_noise
from runtime import ModelPair
from runtime.causal_model import CausalLanguageModel
from runtime.eagle3.drafter import Eagle3Drafter
from runtime.latency import Cell, LatencyConfig, all_cells, replaced, share_waited, sweep, tables_of

# Of all cells. Where more are unsound the machine is busy, not a moment disturbed: measuring again would take as long again.
MOST_REPAIRED = 0.25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser, prompts=False)
    parser.add_argument("output", type=Path, help="folder to write; one file per device in it")


def run(args: argparse.Namespace) -> None:
    config = load_parameters(LatencyConfig, args.pair, "latency", args.params)
    bench = open_bench(args, config, {})
    before, start = joules(bench.pair.target.device), perf_counter()
    tables, notes, noise = measure(bench, config)
    watts = (joules(bench.pair.target.device) - before) / (perf_counter() - start)
    origin = bench.origin(args.pair) | {"notes": notes, "hardware": hardware_of(bench.pair, watts)}
    settings = origin.pop("parameters")
    profile = LatencyProfile(tables, args.pair, settings, origin, noise)
    path = args.output / f"{bench.device['slug']}.json"
    write_json(path, profile.to_record())
    bench.log.remove()
    bench.folder.rmdir()  # it held the log of this measurement alone
    for context in profile.tables["target"].axes["context"] if bench.pair.draft else ():
        print(f"context {context}: a target pass takes as long as {profile.cost_ratio(context):.1f} draft steps")
    print(f"{path} (draftwright latency shows it whole)")
    warn_of_noise(profile)


def hardware_of(pair: ModelPair, watts: float) -> dict[str, Any]:
    """``bandwidth`` of a copy in bytes a second, bytes of weights that a pass reads by model, and mean ``watts`` while the
    profile was measured, where the device counts them."""
    read = {
        name: one.step_bytes if isinstance(one, Eagle3Drafter) else pass_bytes(one.model)
        for name, one in pair.models.items()
        if isinstance(one, CausalLanguageModel | Eagle3Drafter)
    }
    counted = {"watts": watts} if isfinite(watts) else {}
    return {"bandwidth": copy_bandwidth(pair.target.device), "weights": read, **counted}


def measure(bench: Bench, config: LatencyConfig) -> tuple[dict[str, LatencyTable], list[str], tuple[str, ...]]:
    """The tables by name, notes on what the models' limits cut off, and what still speaks against the tables."""
    rows: list[dict[str, Any]] = []
    cells, notes = all_cells(bench.pair, config)
    with tqdm(total=config.visits * len(cells), desc="latency", unit="visit", mininterval=0.5) as bar:
        blocks = Blocks(bench.log, bar)

        def swept(key: str, some: Sequence[Cell]) -> list[dict[str, Any]]:
            order = Random(f"{config.seed}/{key}")
            return blocks.once(key, len(some), partial(sweep, some, order, config.warmup, config.calls, bar.update))

        for number in range(config.visits):
            rows += swept(f"sweep/{number}", cells)
        waited = share_waited(rows)
        for repair in range(config.repairs):
            bad = disturbed(cells, unsound(tables_of(rows)))
            if not 0 < len(bad) <= MOST_REPAIRED * len(cells):
                break
            bar.total = (bar.total or 0) + config.visits * len(bad)
            again = [row for number in range(config.visits) for row in swept(f"repair/{repair}/{number}", bad)]
            rows, waited = replaced(rows, again), max(waited, share_waited(again))
    tables = tables_of(rows)
    return tables, notes, (*waiting_noise(waited), *map(str, unsound(tables)))


def unsound(tables: Mapping[str, LatencyTable]) -> list[Finding]:
    """Find what speaks against ``tables``."""
    return findings(LatencyProfile(tables, "", {}, {}))


def disturbed(cells: Sequence[Cell], found: Sequence[Finding]) -> list[Cell]:
    """The cells that findings name, with those that they were compared with."""
    places = {place for one in found for place in (one.place, *one.beside)}
    return [cell for cell in cells if places.intersection(cell.places)]
