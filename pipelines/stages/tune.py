"""Stage ``tune``: find the fastest exact decoder for a pair on this machine, and export it as bundle ``auto``.

For every sampling setting: all policies are ranked by replay and by the latency profile, the best few compared on the clock on
validation prompts with static chains and what replay does not know. ``load_decoder`` then runs the winner of the request's
setting:

    load_decoder("data/smollm2/auto", pair)

Writes a folder named after the device: ``choices.json`` (what was considered, predicted, measured and chosen), and
``decodes.parquet`` and ``rounds.parquet`` of what was timed. An interrupted run goes on where it stopped.

    draftwright tune --pair smollm2
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.measuring.bench import Bench, open_bench
from pipelines.measuring.harness import apart
from pipelines.measuring.names import CHOICES, PROVENANCE, VALIDATION
from pipelines.measuring.recorded import RecordedTexts
from pipelines.measuring.reference import routed_reference
from pipelines.measuring.tables import write_timed
from pipelines.measuring.tuning import TuneConfig, TuneStudy, candidates
from pipelines.outputs import absent, digest, replacing, write_json
from pipelines.parameters import add_pair_arguments, is_fitted, load_parameters
from pipelines.places import add_place_arguments, fill_in, read_device, read_device_profile
from pipelines.terminal import LINES, add_json_argument, brief, recording
from predictors.bundle import AUTO, CaptureContract, ServingRange, bundle_hash, write_bundle
from predictors.monitoring import KEY
from predictors.sampling import SamplingSettings
from runtime.identity import pair_identity

PLACES = {  # arguments and where they are below a pair's data folder
    "pair_folder": "pair",
    "prompts": "prompts",
    "bundles": "bundles",
    "replay": "replay",
    "fit": "fit",
    "texts": "traces/texts",
    "latency": "latency",
    "output": "tuning",
    "bundle": "auto",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    add_place_arguments(parser, PLACES)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    with recording(args.json) as show:
        _run(args, show)


def _run(args: argparse.Namespace, show: Callable[[Any], None]) -> None:
    config = load_parameters(TuneConfig, args.pair, "tune", args.params)
    fill_in(args, PLACES)
    device = read_device(args.device)["slug"]
    replay = args.replay / device
    fitted = partial(is_fitted, args.pair, path=args.params)
    found = {made: candidates(replay, args.fit, made, config.rivals, fitted) for made in config.settings}
    named = sorted({one.served["bundle"] for some in found.values() for one in some if "bundle" in one.served})
    bundles = {name: bundle_hash(args.bundles / name) for name in named}
    _require_replayed(bundles, replay)
    hashes: dict[str, str | None] = {f"{name}_sha256": value for name, value in bundles.items()}
    hashes["candidates_sha256"] = digest({made.name: [asdict(one) for one in some] for made, some in found.items()})
    texts = RecordedTexts(args.texts, config.max_new_tokens)
    hashes["texts_sha256"] = texts.sha256
    bench = open_bench(args, config, {VALIDATION: None}, hashes)
    texts.require(bench.pair)
    prompts = texts.first(bench.prompts[VALIDATION])[: config.validation_prompts]
    profile = None if bench.pair.draft is None else read_device_profile(args.latency, device)
    study = TuneStudy(bench.pair, config, found, args.bundles, texts, profile)
    chosen = study.run(prompts, bench.log)
    write_timed(bench.folder, args.pair, *apart(study.rows))
    write_json(bench.folder / CHOICES, chosen)
    write_json(bench.folder / PROVENANCE, bench.origin(args.pair))
    _export(args.bundle, args.bundles, args.texts, bench, chosen)
    bench.log.remove()
    show({"bundle": str(args.bundle), "choices": chosen})
    print(brief([f"{one['setting']}: {one['winner']}" for one in chosen], LINES - 1))
    print(f"{args.bundle}: exported")


def _require_replayed(hashes: dict[str, str], replay: Path) -> None:
    """`ValueError` if bundles have changed since they were replayed; says on stderr if they were at a noisy device's prices."""
    origin = {} if absent(replay.parent) else json.loads((replay / PROVENANCE).read_text())
    replayed = origin.get("bundles_sha256", {})
    changed = [name for name, sha256 in hashes.items() if replayed.get(name, sha256) != sha256]
    if changed:
        raise ValueError(f"{', '.join(changed)}: other content than was replayed. Run dvc repro again.")
    if origin.get("noise"):
        print(f"warning: {origin['noise']}", file=sys.stderr)


def _export(folder: Path, bundles: Path, texts: Path, bench: Bench, chosen: list[dict[str, Any]]) -> None:
    """Write the bundle, with the bundles of its controllers in folders below it; whole or not at all."""
    routes, settings = [], [SamplingSettings(temperature) for temperature in bench.inputs["parameters"]["temperatures"]]
    for made, one in zip(settings, chosen, strict=True):
        served = next(candidate["served"] for candidate in one["candidates"] if candidate["name"] == one["winner"])
        named = {"sha256": bundle_hash(bundles / served["bundle"])} if "bundle" in served else {}
        routes.append({"settings": asdict(made), **served, **named})
    lengths = [len(prompt.tokens) for some in bench.prompts.values() for prompt in some]
    dtype = str(bench.pair.target.dtype).removeprefix("torch.")
    served_at = tuple((one.temperature, float(one.top_k), one.top_p) for one in settings)
    serving = ServingRange(dtype, served_at, min(lengths), max(lengths) + bench.inputs["parameters"]["max_new_tokens"])
    contract = CaptureContract(pair_identity(bench.pair, ()), serving, provenance={})
    card = {
        "kind": AUTO,
        "contract": contract.to_json(),
        "decoder": {},
        "routes": routes,
        KEY: routed_reference(routes, bundles, texts),
        "selection": {"predictor": AUTO, "reason": "; ".join(f"{one['setting']}: {one['winner']}" for one in chosen)},
        "lineage": {"prompts_sha256": bench.inputs["prompts_sha256"], "pair_sha256": bench.inputs["pair_sha256"]},
    }
    with replacing(folder) as partial:
        write_bundle(partial, card, {})
        for name in sorted({route["bundle"] for route in routes if "bundle" in route}):
            shutil.copytree(bundles / name, partial / name)
