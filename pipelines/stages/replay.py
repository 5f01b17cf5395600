"""Stage ``replay``: predict every policy for chains and branches on recorded texts at this machine's prices; no model is run.

Seconds come from a latency profile: give ``--device`` another machine's to rank policies there from the same traces. Writes a
folder named after the device: ``replay.parquet``, a row per text and policy, ``policies.json``, how each is built, and
``provenance.json``. ``replay-cN.parquet`` holds the policies for chains where drafting costs 1/N of a target pass.

    draftwright replay --pair smollm2 data/smollm2/traces/texts data/smollm2/bundles data/smollm2/replay
        --device data/device.json --latency data/smollm2/latency
"""

import argparse
import io
import math
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import torch
from joblib import Parallel, delayed
from tqdm import tqdm

from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.measuring.replay_study import ReplayConfig, ReplayStudy
from pipelines.measuring.tables import POLICIES, REPLAY_ROWS, REPLAYED, Rows, replayed_at, write_table
from pipelines.outputs import write_json
from pipelines.parameters import add_pair_arguments, is_fitted, load_parameters
from pipelines.places import place_of, read_device, read_device_profile
from predictors.bundle import CARD, bundle_hash
from predictors.latency.soundness import noise_warning
from predictors.replay.text import RecordedText
from predictors.training.tables import TextTable
from trace_collection.shards import bytes_of

LEAST_TEXTS = 64  # that are worth a process, which starts and reads as long as 55 texts take (10 s on an AMD EPYC)
COPIES = 3  # of the traces, at most, that a process holds (2.2 GB for 0.8): of all texts, and of a split


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("texts", type=place_of, help="folder of text traces")
    parser.add_argument(
        "bundles", type=Path, help="folder of exported bundles: those that decide about chains or branches are replayed"
    )
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")


def run(args: argparse.Namespace) -> None:
    study, table, texts = _opened(args)
    config, profile, device = study.config, study.clocks[0].profile, read_device(args.device)["slug"]
    count, processes = len(texts), _processes(args.texts, table, config.threads, len(texts))
    if processes == 1:
        by_text = list(study.run(tqdm(texts, desc="replay", unit="text")))
    else:
        del texts
        shares = Parallel(n_jobs=processes)(delayed(_share)(args, place, processes) for place in range(processes))
        by_text = [tables for some in zip_longest(*shares) for tables in some if tables is not None]
    folder, names = args.output / device, [REPLAYED, *map(replayed_at, config.cost_ratios)]
    for name, rows in zip(names, zip(*by_text, strict=True), strict=True):
        write_table(folder / name, list(chain.from_iterable(rows)), REPLAY_ROWS)
    write_json(folder / POLICIES, {arm.name: arm.served for arm in study.arms if arm.served is not None})
    write_json(
        folder / PROVENANCE,
        {
            "device": device,
            "traces_sha256": table.manifest.content_hash,
            "profile_hash": profile.profile_hash,
            "cost_ratio": profile.cost_ratio(table.median_context),
            "cost_ratios": list(config.cost_ratios),
            "noise": noise_warning(profile),
            "bundles_sha256": {name: bundle_hash(args.bundles / name) for name in study.bundles},
        },
    )
    print(f"{folder}: {len(study.arms) + 2} policies on {count} texts")


def _opened(args: argparse.Namespace) -> tuple[ReplayStudy, TextTable, list[tuple[str, RecordedText]]]:
    """The study, the recorded texts, and those of its splits."""
    torch.set_num_threads(1)  # heads are asked row by row: more threads wait for one another
    config = load_parameters(ReplayConfig, args.pair, "replay", args.params)
    profile = read_device_profile(args.latency, read_device(args.device)["slug"])
    table = TextTable.read(args.texts)
    folders = [card.parent for card in sorted(args.bundles.glob(f"*/{CARD}"))]
    bundles = {one.name: one for one in folders if is_fitted(args.pair, one.name, args.params)}
    others = [profile.at_cost_ratio(ratio, table.median_context) for ratio in config.cost_ratios]
    texts = [(split, text) for split in (VALIDATION, TEST) for text in table.rows(split).texts()]
    return ReplayStudy(config, profile, bundles, others), table, texts


def _processes(place: Any, table: TextTable, threads: int, texts: int) -> int:
    """As many as ``threads``, if there are ``texts`` for them and memory for what each reads of the traces at ``place``."""
    shard = io.BytesIO((place / table.manifest.shards[0].name).read_bytes())
    need = COPIES * table.manifest.num_rows * bytes_of(pq.read_schema(shard))
    return max(1, min(threads, math.ceil(texts / LEAST_TEXTS), psutil.virtual_memory().available // need))


def _share(args: argparse.Namespace, place: int, processes: int) -> list[list[Rows]]:
    """What one of several processes replays: every so manyth text. The first one's bar stands for all."""
    study, _, texts = _opened(args)
    return list(study.run(tqdm(texts[place::processes], desc="replay", unit="text", disable=place > 0)))
