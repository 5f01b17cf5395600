"""Collect round traces with the real decoder.

    python -m pipelines traces --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/rounds

Parameters: a section of the pair, by default ``traces``. Interrupt it whenever you like: finished shards are kept.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipelines.code import Code
from pipelines.pair_folder import read_pair
from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.prompt_table import MEASURED_SPLITS, Prompt, read_prompts
from predictors.bundle import bundle_hash, read_bundle
from predictors.controllers import learned_controller
from runtime import ModelPair
from trace_collection.collect import TraceConfig, collect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)
    parser.add_argument("--section", default="traces", help="section of the pair's parameters (default: %(default)s)")
    parser.add_argument(
        "--policy", type=Path, help="bundle that decides every other round, of which the rounds between are written"
    )


def run(args: argparse.Namespace) -> None:
    config = load_parameters(TraceConfig, args.pair, args.section, args.params)
    pair, prompts, code = open_collection(args, config.threads, collect)
    policy = None
    if args.policy is not None:
        code += bundle_hash(args.policy)
        policy = learned_controller(read_bundle(args.policy))
    done = collect(pair, prompts, config, args.out, progress, code, policy)
    print(f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run")


def add_collection_arguments(parser: argparse.ArgumentParser) -> None:
    """What every stage that collects takes."""
    add_pair_arguments(parser)
    parser.add_argument("pair_folder", type=Path, help="output of the pair stage")
    parser.add_argument("prompts", type=Path, help="output of the prompts stage")
    parser.add_argument("out", type=Path, help="folder of the shards")


def open_collection(
    args: argparse.Namespace, threads: int, collector: Callable[..., Any]
) -> tuple[ModelPair, list[Prompt], str]:
    """The pair in its traces' format, the prompts of all splits but the reserve, and the hash of all that ``collector`` runs."""
    place = read_pair(args.pair_folder)
    torch.set_num_threads(threads)
    pair = ModelPair.load(place.target, place.draft, dtype=place.dtype, tokenizer=place.tokenizer)
    prompts = [prompt for split in MEASURED_SPLITS for prompt in read_prompts(args.prompts, split)]
    return pair, prompts, Code().digest(collector.__module__)


def progress(work: Iterable[Any], total: int) -> Iterable[Any]:
    """A bar over prompts."""
    return tqdm(work, total=total, desc="collect", unit="prompt")
