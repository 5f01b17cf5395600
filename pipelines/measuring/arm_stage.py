"""What stages that measure an arm study do with it."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.measuring.bench import open_bench
from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION


def measure_arms(
    args: argparse.Namespace, config: Any, bundles: Mapping[str, Path], study_of: Callable[..., Any], table: str
) -> None:
    """Measure ``study_of(pair, config, bundles, prompts, log)`` and write its ``table`` and provenance, both below a folder named
    after the device. An interrupted measurement goes on where it stopped."""
    from pipelines.measuring.decoding_table import DECODES, write_table
    from pipelines.outputs import write_json
    from predictors.bundle import bundle_hash

    hashes: dict[str, str | None] = {f"{name}_sha256": bundle_hash(folder) for name, folder in bundles.items()}
    prompts = {VALIDATION: config.validation_prompts, TEST: config.test_prompts}
    bench = open_bench(args, config, prompts, **hashes)
    study = study_of(bench.pair, config, bundles, bench.prompts, bench.log)
    rows = study.run()
    write_table(bench.folder / table, rows, DECODES)
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair) | {"capped": study.capped})
    bench.log.remove()
    print(f"{bench.folder}: {len(rows)} decodes" + (", ended early by max_minutes" if study.capped else ""))


def exported(bundles: Path, names: tuple[str, ...], what: str) -> dict[str, Path]:
    """Folders of the bundles ``names`` that there are; `ValueError` if there is none of ``what``."""
    from predictors.bundle import CARD

    found = {name: bundles / name for name in names if (bundles / name / CARD).is_file()}
    if not found:
        raise ValueError(f"no {what} under {bundles}. Run the stage that exports them (dvc repro) first.")
    return found
