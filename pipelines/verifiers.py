"""Stage ``verifiers``: compare the verification rules on the same trees, in exact expectation.

Writes a folder named after the device: ``roots.parquet`` (exact expectation of every rule at matched roots),
``acceptance.parquet`` (per-node acceptance rates by depth), ``choices.json`` (shapes of best block efficiency on validation
prompts) and ``provenance.json``. Nothing is timed here: stage ``measure`` does that. An interrupted comparison goes on where it
stopped.

    draftwright verifiers --pair pystdlib data/device.json data/pystdlib/pair data/pystdlib/prompts
        data/pystdlib/verifiers --latency data/pystdlib/latency
"""

import argparse

from tqdm import tqdm

from pipelines.measuring.bench import add_measuring_arguments, open_bench
from pipelines.measuring.measurement_log import Blocks
from pipelines.measuring.names import CHOICES, PROVENANCE, TEST, VALIDATION
from pipelines.measuring.tables import EXPECTATIONS, write_table
from pipelines.measuring.verifiers.roots import compare
from pipelines.measuring.verifiers.shapes import VerifierConfig
from pipelines.outputs import write_json
from pipelines.parameters import load_parameters

add_arguments = add_measuring_arguments


def run(args: argparse.Namespace) -> None:
    config = load_parameters(VerifierConfig, args.pair, "verifiers", args.params)
    bench = open_bench(args, config, {VALIDATION: config.validation_prompts, TEST: config.test_prompts})
    steps = (config.validation_prompts + 2 * config.test_prompts) * len(config.settings)
    with tqdm(total=steps, desc="verifiers", unit="step", mininterval=0.5) as bar:
        blocks = Blocks(bench.log, bar, config.max_minutes)
        tables, choices = compare(bench.pair, config, bench.prompts, blocks)
    for name, rows in tables.items():
        write_table(bench.folder / name, rows, EXPECTATIONS[name])
    write_json(bench.folder / CHOICES, {"choices": choices, "capped": blocks.capped})
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair))
    bench.log.remove()
    counts = ", ".join(f"{len(rows)} rows in {name}" for name, rows in tables.items())
    print(f"{bench.folder}: {counts}" + (", ended early by max_minutes" if blocks.capped else ""))
