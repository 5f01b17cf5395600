"""Collect round traces with the real decoder.

    python -m pipelines.traces --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/rounds

Parameters: section ``traces`` of the pair. Interrupt it whenever you like: finished shards are kept.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipelines.measuring.provenance import source_hash
from pipelines.pair_folder import read_pair
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.prompt_table import SPLITS, read_prompts
from runtime import ModelPair
from trace_collection.collect import TraceConfig, collect

COLLECTING_CODE = (
    "trace_collection",
    "runtime",
    "predictors/controllers",
    "predictors/features.py",
    "predictors/signals.py",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("pair_folder", type=Path, help="output of the pair stage")
    parser.add_argument("prompts", type=Path, help="output of the prompts stage")
    parser.add_argument("out", type=Path, help="folder of the shards")


def run(args: argparse.Namespace) -> None:
    config = load_parameters(TraceConfig, args.pair, "traces", args.params)
    place = read_pair(args.pair_folder)
    torch.set_num_threads(config.threads)  # before loading, which times number formats
    pair = ModelPair.load(place.target, place.draft, dtype=config.dtype, tokenizer=place.tokenizer)
    prompts = [prompt for split in SPLITS for prompt in read_prompts(args.prompts, split)]
    done = collect(pair, prompts, config, args.out, _progress, source_hash(COLLECTING_CODE))
    print(f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run")


def _progress(work: Iterable[Any], total: int) -> Iterable[Any]:
    return tqdm(work, total=total, desc="collect", unit="prompt")


if __name__ == "__main__":
    from pipelines.cli import main

    main(["traces", *sys.argv[1:]])
