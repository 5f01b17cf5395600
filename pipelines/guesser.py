"""Stage ``guesser``: choose how a model drafts for itself by one method, on this machine, and export it.

    python -m pipelines.guesser --pair pystdlib --method progressive_tree data/pystdlib/traces/guesses
        data/pystdlib/guessers/progressive_tree.json data/pystdlib/bundles/progressive_tree --device data/device.json
        --latency data/pystdlib/latency

All ways of the method that were traced are priced by the latency profile; the fastest over all sampling settings is exported.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import add_pair_arguments, load_parameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--method", required=True, help="progressive_tree, lookahead or self_draft")
    parser.add_argument("guesses", type=Path, help="folder of guess traces")
    parser.add_argument("record", type=Path, help="JSON file to write: every way and what it is worth here")
    parser.add_argument("bundle", type=Path, help="bundle folder to write")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from predictors.bundle import write_bundle
    from predictors.latency.serving import on_card
    from predictors.training.guess_choice import GuesserCalibration, choose
    from predictors.training.guess_table import GuessTable

    config = load_parameters(GuesserCalibration, args.pair, "guesser", args.params)
    device = read_device(args.device)["slug"]
    profile = read_device_profile(args.latency, device)
    table = GuessTable.read(args.guesses)
    chosen = choose(table, args.method, profile, config)
    worth = {row["setting"]: row["speedup"] for row in chosen.rows if row["way"] == chosen.way}
    lineage = {"traces_sha256": table.manifest.content_hash, "profile_hash": profile.profile_hash}
    reason = sentence(chosen.way, worth)
    card = {
        "kind": "fixed",
        "contract": table.manifest.contract,
        "decoder": chosen.way,
        "measured_quality": {"split": "validation", "priced_speedup": worth},
        "selection": {"predictor": args.method, "reason": reason},
        "lineage": lineage,
        **on_card(profile.serving),
    }
    write_bundle(args.bundle, card, {})
    write_json(args.record, {"method": args.method, "chosen": chosen.way, "rows": chosen.rows} | lineage)
    print(reason)


def sentence(way: dict[str, Any], worth: dict[str, dict[str, float]]) -> str:
    """What was chosen and what it is worth."""
    options = ", ".join(f"{name} {value}" for name, value in way.items() if name != "method")
    speeds = ", ".join(f"{setting} {value['value']:.2f}x" for setting, value in worth.items())
    return f"{way['method']} ({options}): {speeds} plain decoding by the latency profile, validation prompts"


if __name__ == "__main__":
    from pipelines.cli import main

    main(["guesser", *sys.argv[1:]])
