"""Stage ``selection``: check what the delayed-tree selectors learned from.

Their arms are timed by stage ``measure``. Writes a folder named after the device: ``first_rounds.parquet`` (first rounds of real
decodes at the roots of the root traces), ``prices.json`` (what steps were thought to cost) and ``provenance.json``. An
interrupted check goes on where it stopped.

    draftwright selection --pair pystdlib data/device.json data/pystdlib/pair data/pystdlib/prompts
        data/pystdlib/selection --latency data/pystdlib/latency --trees data/pystdlib/traces/trees
"""

import argparse
from dataclasses import asdict

from tqdm import tqdm

from pipelines.measuring.bench import add_measuring_arguments, open_bench
from pipelines.measuring.measurement_log import Blocks
from pipelines.measuring.names import PROVENANCE, TEST
from pipelines.measuring.selection import SelectionConfig, first_rounds
from pipelines.measuring.tables import BUNDLE, FIRST_ROUNDS, FIRST_ROUNDS_ROWS, PRICES, write_table
from pipelines.outputs import write_json
from pipelines.parameters import is_fitted, load_parameters
from predictors.bundle import CARD, bundle_hash, read_bundle
from predictors.controllers import DelayedTree
from predictors.training.root_table import RootTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_measuring_arguments(parser)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(SelectionConfig, args.pair, "selection", args.params)
    if args.trees is None:
        raise ValueError("selectors learned from tree traces: name their folder with --trees.")
    roots = RootTable.read(args.trees)
    folders = sorted(card.parent for card in args.bundles.glob(f"{BUNDLE}*/{CARD}"))
    folders = [one for one in folders if is_fitted(args.pair, one.name, args.params)]
    if not folders:
        raise ValueError(f"no selector under {args.bundles}/{BUNDLE}*/. Run stage fit (dvc repro) first.")
    hashes: dict[str, str | None] = {f"{folder.name}_sha256": bundle_hash(folder) for folder in folders}
    hashes["roots_sha256"] = roots.manifest.content_hash
    bench = open_bench(args, config, {TEST: config.checked_prompts}, hashes)
    with tqdm(desc="selection", unit="step") as bar:
        blocks = Blocks(bench.log, bar, config.max_minutes)
        rows = first_rounds(bench.pair, config, roots, bench.prompts[TEST], blocks)
    write_table(bench.folder / FIRST_ROUNDS, rows, FIRST_ROUNDS_ROWS)
    selectors = {folder.name.removeprefix(BUNDLE): DelayedTree(read_bundle(folder)) for folder in folders}
    prices = {
        rule: {"actions": [action.name for action in one.actions], "prices": asdict(one.prices)}
        for rule, one in selectors.items()
    }
    write_json(bench.folder / PRICES, prices)
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair) | {"capped": blocks.capped})
    bench.log.remove()
    print(f"{bench.folder}: {len(rows)} roots" + (", ended early by max_minutes" if blocks.capped else ""))
