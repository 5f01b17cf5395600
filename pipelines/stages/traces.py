"""Collect a trace of a pair: texts, trees or guesses.

    texts     along the target's own texts, the draft's distributions at every position, and after tokens that may replace a
              rejected one: for predictors of chains and branches, and for replay
    trees     what every delayed tree would emit at positions of such texts
    guesses   how the target drafts for itself, by many configurations

Parameters: section ``traces.<of>`` of the pair, and what all of them may take of the disk, ``traces.max_gigabytes``. Interrupt it
whenever you like: finished shards are kept.

    draftwright traces --pair smollm2 --of texts data/smollm2/pair data/smollm2/prompts data/smollm2/traces/texts
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipelines.measuring.provenance import source_hash
from pipelines.parameters import add_pair_arguments, load_parameters, read_machine
from pipelines.places import place_of, read_pair
from pipelines.prompt_table import MEASURED_SPLITS, Prompt, read_prompts
from pipelines.scale import add_workers_argument, workers
from predictors.config import Checked, Positive
from runtime import ModelPair
from trace_collection.collection import Collector, collect
from trace_collection.guesses import GuessCollector, GuessTraceConfig
from trace_collection.texts import TextCollector, TextTraceConfig
from trace_collection.trees import TreeCollector, TreeTraceConfig

SECTION = "traces"
COLLECTING = ("runtime", "trace_collection", "predictors")  # shards of other code are collected again
TRAINING = "predictors/training"  # of which they do not depend
SMALL = 1e9  # bytes of weights that each worker holds by itself
CONFIGS = {"texts": TextTraceConfig, "trees": TreeTraceConfig, "guesses": GuessTraceConfig}


@dataclass(frozen=True)
class TraceLimits(Checked):
    """Bound on what all traces of a pair take of the disk together."""

    max_gigabytes: Positive = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--of", required=True, choices=CONFIGS, help="which trace")
    parser.add_argument("pair_folder", type=Path, help="output of the pair stage")
    parser.add_argument("prompts", type=Path, help="output of the prompts stage")
    parser.add_argument("out", type=place_of, help="folder of the shards")
    add_workers_argument(
        parser, None, "as many as section machine has threads for small models on CPUs, else this process"
    )


def run(args: argparse.Namespace) -> None:
    limits = load_parameters(TraceLimits, args.pair, SECTION, args.params, besides=CONFIGS)
    config: Any = load_parameters(CONFIGS[args.of], args.pair, f"{SECTION}.{args.of}", args.params)
    make = partial(loaded, args.of, args.pair_folder.resolve(), config, args.prompts.resolve())
    count = args.workers or most_workers(args, config.threads)
    with workers(make, count, config.threads, args.pair_folder) as over:
        done = collect(over, args.out, progress, limits.max_gigabytes, source_hash(COLLECTING, but=TRAINING))
    print(f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run, {done['rows']} rows")


def most_workers(args: argparse.Namespace, threads: int) -> int:
    """Return how many workers of so many ``threads`` share this machine's, if Ray is installed: one where models are large or
    on a device."""
    place = read_pair(args.pair_folder)
    files = [file for model in (place.target, place.draft or "") for file in Path(model).glob("*.safetensors")]
    if find_spec("ray") is None or torch.cuda.is_available() or sum(file.stat().st_size for file in files) >= SMALL:
        return 1
    cores = min(read_machine(args.pair, args.params).threads, os.cpu_count() or 1)
    return max(1, cores // threads)


def loaded(of: str, folder: Path, config: Any, prompts: Path) -> Collector:
    """A `collector` with the models of a pair's folder, and the prompts of another."""
    torch.set_num_threads(config.threads)
    place = read_pair(folder)
    pair = ModelPair.load(**place.models, dtype=place.dtype)
    return collector(of, pair, config, [one for split in MEASURED_SPLITS for one in read_prompts(prompts, split)])


def collector(of: str, pair: ModelPair, config: Any, prompts: Sequence[Prompt]) -> Collector:
    """The collector ``of`` a trace, with the prompts of all splits but the reserve."""
    if of == "texts":
        return TextCollector(pair, config, prompts)
    return TreeCollector(pair, config, prompts) if of == "trees" else GuessCollector(pair, config, prompts)


def progress(work: Iterable[Any], total: int) -> Iterable[Any]:
    """A bar over prompts, with their rate and the time left."""
    return tqdm(work, total=total, desc="collect", unit="prompt")
