"""Stage ``tune``: find the fastest exact decoder for a pair on this machine, and export it as bundle ``auto``.

    draftwright tune --pair pystdlib

For every sampling setting: all policies are ranked by replay and by the latency profile, the best few timed on validation prompts
by successive halving, and the winner scored on test prompts beside the fastest static chain on the clock and plain decoding.
``load_decoder`` then runs the winner of the request's setting:

    load_decoder("data/pystdlib/bundles/auto", pair)

An interrupted run goes on where it stopped.
"""

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import add_place_arguments, fill_in

if TYPE_CHECKING:
    from pipelines.measuring.bench import Bench
    from pipelines.measuring.tuning.study import Tuned

PLACES = {  # arguments and where they are below a pair's data folder
    "pair_folder": "pair",
    "prompts": "prompts",
    "latency": "latency",
    "bundles": "bundles",
    "replay": "replay",
    "guessers": "guessers",
    "selectors": "selectors",
    "positions": "traces/positions",
    "output": "tuning",
    "bundle": "bundles/auto",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    add_place_arguments(parser, PLACES)


def run(args: argparse.Namespace) -> None:
    from pipelines.device_file import read_device
    from pipelines.measuring.bench import open_bench
    from pipelines.measuring.decoding_table import DECODES, write_table
    from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
    from pipelines.measuring.tuning.candidates import candidates
    from pipelines.measuring.tuning.names import CHOICES, DECODING
    from pipelines.measuring.tuning.study import TuneConfig, TuneStudy
    from pipelines.outputs import write_json

    config = load_parameters(TuneConfig, args.pair, "tune", args.params)
    fill_in(args, PLACES)
    device = read_device(args.device)["slug"]
    found = {
        made: candidates(args.replay / device, args.guessers, args.selectors, made.name) for made in config.settings
    }
    hashes = {name: _sha256(args.bundles / name) for name in _bundles_of(found)}
    _require_replayed(hashes, args.replay / device)
    counts = {VALIDATION: config.validation_prompts, TEST: config.test_prompts}
    bench = open_bench(args, config, counts, **{f"{name}_sha256": value for name, value in hashes.items()})
    study = TuneStudy(bench.pair, config, found, args.bundles, bench.prompts, bench.log)
    chosen = study.run()
    write_table(bench.folder / DECODING, study.rows, DECODES)
    write_json(bench.folder / CHOICES, [_record(one) for one in chosen])
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair) | {"capped": study.capped})
    _export(args.bundle, args.bundles, args.positions, bench, chosen)
    bench.log.remove()
    for one in chosen:
        print(f"{one.settings.name}: {one.winner.name}")
    print(f"{args.bundle}: exported" + (" (max_minutes ended the timing early)" if study.capped else ""))


def _bundles_of(found: dict[Any, list[Any]]) -> list[str]:
    """Names of all bundles among candidates."""
    return sorted({one.served["bundle"] for some in found.values() for one in some if "bundle" in one.served})


def _require_replayed(hashes: dict[str, str], replay: Path) -> None:
    """`ValueError` if bundles have changed since they were replayed; says on stderr if they were at a noisy device's prices."""
    from pipelines.measuring.names import PROVENANCE

    origin = json.loads((replay / PROVENANCE).read_text())
    replayed = origin.get("bundles_sha256", {})
    changed = [name for name, sha256 in hashes.items() if replayed.get(name, sha256) != sha256]
    if changed:
        raise ValueError(
            f"{', '.join(changed)}: other content than was replayed. Run the replay stage (dvc repro) again."
        )
    if origin.get("noise"):
        print(f"warning: {origin['noise']}", file=sys.stderr)


def _sha256(folder: Path) -> str:
    from predictors.bundle import CARD, bundle_hash

    if not (folder / CARD).is_file():
        raise ValueError(
            f"{folder} holds no bundle, and it is a candidate. Run the stage that exports it (dvc repro) again."
        )
    return bundle_hash(folder)


def _record(tuned: "Tuned") -> dict[str, Any]:
    """What was considered and chosen at one sampling setting."""
    return {
        "setting": tuned.settings.name,
        "winner": tuned.winner.name,
        "static": None if tuned.static is None else tuned.static.name,
        "candidates": [asdict(one) for one in tuned.timed],
        "turns": [asdict(turn) for turn in tuned.turns],
    }


def _export(folder: Path, bundles: Path, positions: Path, bench: "Bench", chosen: list["Tuned"]) -> None:
    """Write the bundle, with the bundles of its controllers in folders below it; whole or not at all."""
    from pipelines.outputs import replacing
    from pipelines.reference import KEY, routed_reference
    from predictors.bundle import AUTO, write_bundle
    from predictors.contract import CaptureContract, ServingRange
    from predictors.latency.serving import on_card
    from runtime.identity import pair_identity

    routes = []
    for one in chosen:
        served = one.winner.served
        named = {"sha256": _sha256(bundles / served["bundle"])} if "bundle" in served else {}
        routes.append({"settings": asdict(one.settings), **served, **named})
    lengths = [len(prompt.tokens) for some in bench.prompts.values() for prompt in some]
    dtype = str(getattr(bench.pair.target, "dtype", "")).removeprefix("torch.")
    settings = tuple((one.settings.temperature, float(one.settings.top_k), one.settings.top_p) for one in chosen)
    serving = ServingRange(dtype, settings, min(lengths), max(lengths) + bench.inputs["parameters"]["max_new_tokens"])
    contract = CaptureContract(pair_identity(bench.pair, ()), serving, provenance={})
    card = {
        "kind": AUTO,
        "contract": contract.to_json(),
        "decoder": {},
        "routes": routes,
        KEY: routed_reference(routes, bundles, positions),
        "selection": {
            "predictor": AUTO,
            "reason": "; ".join(f"{one.settings.name}: {one.winner.name}" for one in chosen),
        },
        "lineage": {"prompts_sha256": bench.inputs["prompts_sha256"], "pair_sha256": bench.inputs["pair_sha256"]},
        **on_card(bench.serving),
    }
    with replacing(folder) as partial:
        write_bundle(partial, card, {})
        for name in sorted({route["bundle"] for route in routes if "bundle" in route}):
            shutil.copytree(bundles / name, partial / name)


if __name__ == "__main__":
    from pipelines.cli import main

    main(["tune", *sys.argv[1:]])
