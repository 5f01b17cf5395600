"""Stage ``verifiers``: compare the verification rules on the same trees and the same prompts.

Writes a folder named after the device: ``roots.parquet`` (exact expectation of every rule at matched roots),
``acceptance.parquet`` (per-node acceptance rates by depth), ``decoding.parquet`` (timed, interleaved decodes), ``choices.json``
(shapes chosen on validation prompts) and ``provenance.json``. An interrupted comparison goes on where it stopped.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.parameters import add_pair_arguments, load_parameters

PARTIAL = "partial.jsonl"
MEASURED_CODE = ("runtime", "predictors", "pipelines/measuring")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("pair_folder", type=Path, help="folder of the pair stage")
    parser.add_argument("prompts", type=Path, help="folder or file of prompts")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    import torch

    from pipelines.measuring.measurement_log import MeasurementLog
    from pipelines.measuring.provenance import provenance, source_hash, versions
    from pipelines.measuring.verifier_names import CHOICES
    from pipelines.measuring.verifier_study import VerifierConfig, VerifierStudy
    from pipelines.measuring.verifier_table import write_tables
    from pipelines.outputs import write_json
    from pipelines.pair_folder import read_facts, read_pair
    from pipelines.prompt_table import read_prompts
    from runtime import ModelPair

    config = load_parameters(VerifierConfig, args.pair, "verifiers", args.params)
    torch.set_num_threads(config.threads)
    device = json.loads(args.device.read_text())
    counts = {
        VALIDATION: max(config.validation_prompts, config.timed_validation_prompts),
        TEST: max(config.test_prompts, config.timed_test_prompts),
    }
    prompts = {split: read_prompts(args.prompts, split, count) for split, count in counts.items()}
    for split, some in prompts.items():
        if not some:
            raise ValueError(
                f"{args.prompts} has no {split} prompts: shapes are chosen on validation and scored on test prompts."
            )
    inputs = {
        "parameters": asdict(config),
        "pair_sha256": _digest(read_facts(args.pair_folder)),
        "prompts_sha256": _digest({name: [p.tokens for p in some] for name, some in prompts.items()}),
        "code_sha256": source_hash(MEASURED_CODE),
    }
    folder = args.output / device["slug"]
    log = MeasurementLog(folder / PARTIAL, _digest({**inputs, "device": device, "versions": versions()}))
    if log.resumed:
        print(f"going on after {log.resumed} blocks of an interrupted comparison")
    location = read_pair(args.pair_folder)
    pair = ModelPair.load(target=location.target, draft=location.draft, tokenizer=location.tokenizer)
    study = VerifierStudy(pair, config, prompts, log)
    tables, choices = study.run()
    origin = provenance(device) | inputs | {"pair": args.pair, "threads": torch.get_num_threads()}
    origin |= {"dtype": str(pair.target.dtype).removeprefix("torch.")}  # type: ignore[attr-defined]
    write_tables(folder, tables)
    write_json(folder / CHOICES, {"choices": choices, "capped": study.capped})
    write_json(folder / PROVENANCE, origin)
    log.remove()
    rows = ", ".join(f"{len(rows)} rows in {name}" for name, rows in tables.items())
    print(f"{folder}: {rows}" + (", ended early by max_minutes" if study.capped else ""))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


if __name__ == "__main__":
    from pipelines.cli import main

    main(["verifiers", *sys.argv[1:]])
