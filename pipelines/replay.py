"""Stage ``replay``: predict every policy for chains and branches on recorded texts at this machine's prices; no model is run.

Seconds come from a latency profile: give ``--device`` another machine's to rank policies there from the same traces. Writes a
folder named after the device: ``replay.parquet``, a row per text and policy, ``policies.json``, how each is built, and
``provenance.json``. ``replay-cN.parquet`` holds the policies for chains where drafting costs 1/N of a target pass.

    draftwright replay --pair pystdlib data/pystdlib/traces/texts data/pystdlib/bundles data/pystdlib/replay
        --device data/device.json --latency data/pystdlib/latency
"""

import argparse
from pathlib import Path

from pipelines.device_file import read_device, read_device_profile
from pipelines.parameters import add_pair_arguments, is_fitted, load_parameters
from pipelines.places import place_of


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
    import torch

    from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
    from pipelines.measuring.replay.study import ReplayConfig, ReplayStudy
    from pipelines.measuring.replay.table import POLICIES, REPLAY_ROWS, REPLAYED, replayed_at
    from pipelines.measuring.tables import write_table
    from pipelines.outputs import write_json
    from predictors.bundle import CARD, bundle_hash
    from predictors.latency.soundness import noise_warning
    from predictors.training.text_table import TextTable

    torch.set_num_threads(1)  # heads are asked row by row: more threads wait for one another
    config = load_parameters(ReplayConfig, args.pair, "replay", args.params)
    device = read_device(args.device)["slug"]
    profile = read_device_profile(args.latency, device)
    table = TextTable.read(args.texts)
    folders = [card.parent for card in sorted(args.bundles.glob(f"*/{CARD}"))]
    bundles = {one.name: one for one in folders if is_fitted(args.pair, one.name, args.params)}
    texts = [(split, text) for split in (VALIDATION, TEST) for text in table.rows(split).texts()]

    study = ReplayStudy(config, profile, bundles)
    folder = args.output / device
    write_table(folder / REPLAYED, study.run(texts), REPLAY_ROWS)
    for ratio in config.cost_ratios:
        elsewhere = ReplayStudy(config, profile.at_cost_ratio(ratio, table.median_context), bundles, chains_only=True)
        write_table(folder / replayed_at(ratio), elsewhere.run(texts), REPLAY_ROWS)
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
            "bundles_sha256": {name: bundle_hash(bundles[name]) for name in study.bundles},
        },
    )
    print(f"{folder}: {len(study.arms) + 2} policies on {len(texts)} texts")
