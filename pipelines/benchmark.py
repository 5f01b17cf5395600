"""Stage ``benchmark``: time every decoder on held-out prompts, interleaved and paired, on this machine.

Writes a folder named after the device: ``measurements.parquet`` (one row per run), ``replay.parquet`` (time in the loop against a
bare replay of its passes), ``findings.json`` (what was chosen on validation prompts, exactness in float32, notes) and
``provenance.json``. An interrupted benchmark goes on where it stopped.
"""

import argparse
import hashlib
import json
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.measuring.names import (
    FINDINGS,
    HF_ASSISTED,
    HF_PLAIN,
    HRAD,
    MEASUREMENTS,
    PLAIN,
    PROVENANCE,
    REPLAYS,
    TEST,
    VALIDATION,
)
from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from pipelines.measuring.measurement import MeasurementConfig
    from pipelines.measuring.measurement_log import MeasurementLog, Rows
    from pipelines.prompt_table import Prompt
    from runtime import ModelPair

PARTIAL = "partial.jsonl"
TIMED_CODE = ("runtime", "predictors", "pipelines/measuring")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("device", type=Path, help="JSON file of the device stage")
    parser.add_argument("pair_folder", type=Path, help="folder of the pair stage")
    parser.add_argument("prompts", type=Path, help="folder or file of prompts")
    parser.add_argument("bundles", type=Path, help="folder of exported bundles; hrad is left out if it is not there")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    import torch

    from pipelines.measuring.measurement import MeasurementConfig
    from pipelines.measuring.measurement_log import MeasurementLog
    from pipelines.measuring.provenance import provenance, source_hash, versions
    from pipelines.pair_folder import read_facts, read_pair
    from pipelines.prompt_table import read_prompts
    from predictors.bundle import CARD, bundle_hash, read_bundle
    from runtime import ModelPair

    config = load_parameters(MeasurementConfig, args.pair, "benchmark", args.params)
    torch.set_num_threads(config.threads)
    device = json.loads(args.device.read_text())
    splits = {
        VALIDATION: read_prompts(args.prompts, VALIDATION, config.validation_prompts),
        TEST: read_prompts(args.prompts, TEST, config.test_prompts),
    }
    bundle = args.bundles / "hrad" if (args.bundles / "hrad" / CARD).is_file() else None
    inputs = {
        "parameters": asdict(config),
        "pair_sha256": _digest(read_facts(args.pair_folder)),
        "prompts_sha256": _digest({name: [p.tokens for p in prompts] for name, prompts in splits.items()}),
        "bundle_sha256": None if bundle is None else bundle_hash(bundle),
        "code_sha256": source_hash(TIMED_CODE),
    }
    fingerprint = _digest({**inputs, "device": device, "versions": versions()})
    folder = args.output / device["slug"]
    log = MeasurementLog(folder / PARTIAL, fingerprint)
    if log.resumed:
        print(f"going on after {log.resumed} blocks of an interrupted benchmark")
    location = read_pair(args.pair_folder)
    pair = ModelPair.load(target=location.target, draft=location.draft, tokenizer=location.tokenizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        measurements, replays, findings = measure(pair, splits, bundle, config, log)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a head trained on bfloat16 states serves float32 ones here
        findings["exactness"] = log.once("exactness", lambda: _exactness(location, splits[TEST], bundle, config))
    findings["notes"] = sorted({str(warning.message) for warning in caught if warning.category is UserWarning})
    findings["notes"] += _bypass_notes(measurements)
    findings["bundle"] = None if bundle is None else _bundle_facts(read_bundle(bundle).card)
    if bundle is None:
        findings["notes"].append(f"no bundle in {args.bundles.name}/hrad: the arm hrad is left out")
    origin = provenance(device) | inputs | {"pair": args.pair, "threads": torch.get_num_threads()}
    origin |= {"dtype": str(pair.target.dtype).removeprefix("torch.")}  # type: ignore[attr-defined]
    _write(folder, args.pair, measurements, replays, findings, origin)
    log.remove()
    _print_summary(folder, measurements, findings)


def measure(
    pair: "ModelPair",
    splits: "dict[str, list[Prompt]]",
    bundle: Path | None,
    config: "MeasurementConfig",
    log: "MeasurementLog",
) -> "tuple[Rows, Rows, dict[str, Any]]":
    """All rows, the replay's rows and the findings of the timed part."""
    from tqdm import tqdm

    from pipelines.measuring import arms, measurement

    decoders = arms.build_decoders(pair, config.gammas, config.epsilons, config.verifier, bundle)
    target, draft = pair.target.model, pair.draft.model  # type: ignore[attr-defined, union-attr]
    runners = {name: arms.decoder_arm(decoder, config.max_new_tokens) for name, decoder in decoders.items()}
    runners[HF_PLAIN] = arms.hugging_face_arm(target, None, config.max_new_tokens)
    runners[HF_ASSISTED] = arms.hugging_face_arm(target, draft, config.max_new_tokens)
    swept = [name for name in runners if name.startswith(tuple(measurement.FAMILIES.values()))]
    validation, test = splits[VALIDATION], splits[TEST]
    num_blocks = len(config.temperatures) * config.repeats
    total = num_blocks * (len(validation) * len(swept) + len(test) * len(runners))
    total += len(config.temperatures) * 2 * min(config.replay_prompts, len(test))
    with tqdm(total=total, desc="benchmark", unit="run", mininterval=0.5) as bar:
        timing = measurement.Measurement(config, runners, log, bar)
        timing.warm_up(validation)
        rows = timing.time_split(VALIDATION, validation, swept, measurement.VALIDATION_SHARE)
        choices = timing.choose(rows)
        rows += timing.time_split(TEST, test, runners, measurement.TEST_SHARE)
        best = {choice["temperature"]: choice["arm"] for choice in choices if choice["family"] == "static"}
        replays = timing.time_replay(test, decoders, best)  # type: ignore[arg-type]
        bar.set_postfix_str("")
    return rows, replays, {"choices": choices, "capped": timing.capped}


def _exactness(location: Any, prompts: "list[Prompt]", bundle: Path | None, config: "MeasurementConfig") -> "Rows":
    from pipelines.measuring.exactness import check_exactness, load_float32

    pair = load_float32(location.target, location.draft, location.tokenizer)
    options = {"gammas": config.gammas, "epsilons": config.epsilons, "verifier": config.verifier, "bundle": bundle}
    tokens = [prompt.tokens for prompt in prompts[: config.exactness_prompts]]
    return check_exactness(pair, tokens, config.max_new_tokens, options)


def _bypass_notes(rows: "Rows") -> list[str]:
    """How much of the controller's arm was really decoded at its fallback."""
    notes = []
    for temperature in sorted({row["temperature"] for row in rows}):
        runs = [row for row in rows if row["arm"] == HRAD and row["temperature"] == temperature]
        rounds, bypassed = (sum(row[name] for row in runs) for name in ("rounds", "bypassed"))
        if bypassed:
            notes.append(
                f"T={temperature:g}: hrad stood aside in {bypassed / rounds:.0%} of its rounds (static gamma instead)"
            )
    return notes


def _bundle_facts(card: dict[str, Any]) -> dict[str, Any]:
    """What a reader must know of the exported controller."""
    return {
        "selection": card.get("selection"),
        "thresholds": card.get("thresholds"),
        "calibrated_settings": card["contract"]["serving_range"]["settings"],
        "gamma": card["decoder"].get("drafter", {}).get("gamma"),
    }


def _write(folder: Path, pair: str, rows: "Rows", replays: "Rows", findings: Any, origin: dict[str, Any]) -> None:
    from pipelines.measuring.measurement_table import write_measurements, write_replays
    from pipelines.outputs import write_json

    write_measurements(folder / MEASUREMENTS, pair, rows)
    write_replays(folder / REPLAYS, pair, replays)
    write_json(folder / FINDINGS, findings)
    write_json(folder / PROVENANCE, origin)


def _print_summary(folder: Path, rows: "Rows", findings: dict[str, Any]) -> None:
    from pipelines.measuring.measurement import tokens_per_second

    test = [row for row in rows if row["split"] == TEST]
    for choice in findings["choices"]:
        if choice["family"] == "static":
            plain, best = (tokens_per_second(test, arm, choice["temperature"]) for arm in (PLAIN, choice["arm"]))
            print(f"T={choice['temperature']:g}: {choice['arm']} {best:.0f} tokens/s, {PLAIN} {plain:.0f} tokens/s")
    inexact = [row["arm"] for row in findings["exactness"] if not row["exact_float32"]]
    print(f"greedy text in float32: {'equal for every arm' if not inexact else 'differs for ' + ', '.join(inexact)}")
    for note in findings["notes"]:
        print(f"note: {note}")
    print(f"{folder}: {len(rows)} runs" + (", ended early by max_minutes" if findings["capped"] else ""))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


if __name__ == "__main__":
    from pipelines.cli import main

    main(["benchmark", *sys.argv[1:]])
