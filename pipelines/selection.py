"""Stage ``selection``: time the delayed-tree selectors beside the best static trees, and check what they learned from.

Writes a folder named after the device: ``decoding.parquet`` (timed, interleaved decodes), ``rounds.parquet`` (first rounds of
real decodes at the roots of the root traces), ``prices.json`` (what steps were thought to cost) and ``provenance.json``. An
interrupted measurement goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path

from pipelines.measuring.bench import add_bench_arguments, open_bench
from pipelines.measuring.names import PROVENANCE, TEST
from pipelines.parameters import load_parameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("roots", type=Path, help="folder of root traces")
    parser.add_argument("bundles", type=Path, help="folder of exported bundles: all selectors in it are measured")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.measuring.selection.names import BUNDLE, PRICES
    from pipelines.measuring.selection.study import SelectionConfig, SelectionStudy
    from pipelines.measuring.selection.table import write_tables
    from pipelines.outputs import write_json
    from predictors.bundle import CARD, bundle_hash
    from predictors.training.root_table import RootTable

    config = load_parameters(SelectionConfig, args.pair, "selection", args.params)
    roots = RootTable.read(args.roots)
    folders = sorted(card.parent for card in args.bundles.glob(f"{BUNDLE}*/{CARD}"))
    if not folders:
        raise ValueError(f"no selector under {args.bundles}/{BUNDLE}*/. Run the selector stage (dvc repro) first.")
    bundles = {folder.name.removeprefix(BUNDLE): folder for folder in folders}
    hashes: dict[str, str | None] = {f"{folder.name}_sha256": bundle_hash(folder) for folder in folders}
    hashes["roots_sha256"] = roots.manifest.content_hash
    bench = open_bench(args, config, {TEST: max(config.test_prompts, config.checked_prompts)}, **hashes)
    study = SelectionStudy(bench.pair, config, roots, bundles, bench.prompts[TEST], bench.log)
    tables = study.run()
    write_tables(bench.folder, tables)
    write_json(bench.folder / PRICES, study.prices())
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair) | {"capped": study.capped})
    bench.log.remove()
    rows = ", ".join(f"{len(rows)} rows in {name}" for name, rows in tables.items())
    print(f"{bench.folder}: {rows}" + (", ended early by max_minutes" if study.capped else ""))


if __name__ == "__main__":
    from pipelines.cli import main

    main(["selection", *sys.argv[1:]])
