"""Stage ``benchmark``: time every decoder on held-out prompts, interleaved and paired, on this machine.

Writes a folder named after the device: ``measurements.parquet`` (one row per run), ``replay.parquet`` (time in the loop against a
bare replay of its passes), ``findings.json`` (what was chosen on validation prompts, exactness in float32, notes) and
``provenance.json``. An interrupted benchmark goes on where it stopped.
"""

import argparse
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.measuring.bench import Bench, add_bench_arguments, open_bench
from pipelines.measuring.names import (
    FINDINGS,
    HF_ASSISTED,
    HF_PLAIN,
    HRAD,
    LENGTH,
    MEASUREMENTS,
    PLAIN,
    PROVENANCE,
    REPLAYS,
    SPECBRANCH,
    TEST,
    TIMELINES,
    VALIDATION,
    WITHOUT_BRANCHES,
    branch_arm,
)
from pipelines.parameters import load_parameters

if TYPE_CHECKING:
    from pipelines.measuring.measurement import MeasurementConfig
    from pipelines.measuring.measurement_log import Rows
    from pipelines.measuring.timelines import Timelines

MORE_ARMS = 5  # static branch-parallel ones that are chosen, and those with a draft process
BUNDLES = (HRAD, LENGTH, SPECBRANCH, WITHOUT_BRANCHES)  # arms from exported bundles: each the name of a folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bench_arguments(parser)
    parser.add_argument("bundles", type=Path, help="folder of exported bundles; those not there are left out")
    parser.add_argument("output", type=Path, help="folder to write; one folder per device in it")


def run(args: argparse.Namespace) -> None:
    from pipelines.measuring.measurement import MeasurementConfig
    from pipelines.outputs import write_json
    from predictors.bundle import CARD, bundle_hash, read_bundle

    config = load_parameters(MeasurementConfig, args.pair, "benchmark", args.params)
    bundles = {arm: args.bundles / arm for arm in BUNDLES if (args.bundles / arm / CARD).is_file()}
    counts = {VALIDATION: config.validation_prompts, TEST: config.test_prompts}
    hashes = {_hash_name(arm): bundle_hash(bundles[arm]) if arm in bundles else None for arm in BUNDLES}
    bench = open_bench(args, config, counts, **hashes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        measurements, replays, findings, timelines = measure(bench, bundles, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a head trained on bfloat16 states serves float32 ones here
        findings["exactness"] = bench.log.once("exactness", lambda: _exactness(bench, bundles, config))
    findings["forward_agreement"] = _forward_agreement(bench, config)
    findings["notes"] = sorted({str(warning.message) for warning in caught if warning.category is UserWarning})
    findings["notes"] += _bypass_notes(measurements, bundles)
    missing = [arm for arm in BUNDLES if arm not in bundles]
    findings["notes"] += [f"no bundle in {args.bundles.name}/{arm}: the arm {arm} is left out" for arm in missing]
    findings["bundles"] = {arm: _bundle_facts(read_bundle(folder).card) for arm, folder in bundles.items()}
    findings["bundle"] = findings["bundles"].get(HRAD)  # what the report's headline speaks of
    _write(bench.folder, args.pair, measurements, replays, findings, bench.origin(args.pair))
    write_json(bench.folder / TIMELINES, timelines)
    bench.log.remove()
    _print_summary(bench.folder, measurements, findings)


def measure(
    bench: Bench, bundles: Mapping[str, Path], config: "MeasurementConfig"
) -> "tuple[Rows, Rows, dict[str, Any], Timelines]":
    """All rows, the replay's rows, the findings of the timed part, and when draft and target worked."""
    from tqdm import tqdm

    from pipelines.measuring import arms, measurement
    from pipelines.measuring.blocks import Blocks
    from pipelines.measuring.branch_arms import wall_decoders
    from pipelines.measuring.timelines import record_timelines

    pair, splits = bench.pair, bench.prompts
    decoders = arms.build_decoders(pair, **_arm_options(config, bundles))
    target, draft = pair.target.model, pair.draft.model  # type: ignore[attr-defined, union-attr]
    runners = {name: arms.decoder_arm(decoder, config.max_new_tokens) for name, decoder in decoders.items()}
    runners[HF_PLAIN] = arms.hugging_face_arm(target, None, config.max_new_tokens)
    runners[HF_ASSISTED] = arms.hugging_face_arm(target, draft, config.max_new_tokens)
    swept = [name for name in runners if measurement.family_of(name) is not None]
    wanted = [name for name in runners if name not in swept or branch_arm(name) is None]
    validation, test = splits[VALIDATION], splits[TEST]
    num_blocks = len(config.temperatures) * config.repeats
    total = num_blocks * (len(validation) * len(swept) + len(test) * (len(wanted) + MORE_ARMS))
    total += len(config.temperatures) * 2 * min(config.replay_prompts, len(test))
    with tqdm(total=total, desc="benchmark", unit="run", mininterval=0.5) as bar:
        blocks = Blocks(bench.log, bar, config.max_minutes)
        timing = measurement.Measurement(config, runners, blocks)
        timing.warm_up(validation)
        rows = timing.time_split(VALIDATION, validation, swept, measurement.VALIDATION_SHARE)
        choices = timing.choose(rows)
        wanted += sorted({choice["arm"] for choice in choices} - set(wanted))
        walls = wall_decoders(pair, wanted, bundles)
        timing.arms = runners | {name: arms.decoder_arm(d, config.max_new_tokens) for name, d in walls.items()}
        wanted += walls
        timing.warm_up(validation[:1])
        rows += timing.time_split(TEST, test, wanted, measurement.TEST_SHARE)
        best = {choice["temperature"]: choice["arm"] for choice in choices if choice["family"] == "static"}
        replays = timing.time_replay(test, decoders, best)  # type: ignore[arg-type]
        bar.set_postfix_str("timelines")
        drawn = {name: decoder for name, decoder in (decoders | walls).items() if name in wanted and branch_arm(name)}
        timelines = bench.log.once("timelines", lambda: [record_timelines(drawn, test[0].tokens)])[0]
        for decoder in walls.values():
            decoder.close()
        bar.set_postfix_str("")
    return rows, replays, {"choices": choices, "capped": blocks.capped}, timelines


def _exactness(bench: Bench, bundles: Mapping[str, Path], config: "MeasurementConfig") -> "Rows":
    from pipelines.measuring.exactness import check_exactness, load_float32

    location = bench.location
    pair = load_float32(location.target, location.draft, location.tokenizer)
    tokens = [prompt.tokens for prompt in bench.prompts[TEST][: config.exactness_prompts]]
    return check_exactness(pair, tokens, config.max_new_tokens, _arm_options(config, bundles))


def _arm_options(config: "MeasurementConfig", bundles: Mapping[str, Path]) -> dict[str, Any]:
    names = ("gammas", "epsilons", "verifier", "branch_gammas", "draft_stage_gammas")
    return {**{name: getattr(config, name) for name in names}, "bundles": bundles}


def _forward_agreement(bench: Bench, config: "MeasurementConfig") -> dict[str, dict[str, float]]:
    """By model that runs by the compact forward, how far its logits are from Hugging Face's in float32."""
    from pipelines.measuring.exactness import load_float32
    from pipelines.measuring.forward_agreement import forward_agreement
    from runtime.causal_model import CausalLanguageModel

    location = bench.location
    pair = load_float32(location.target, location.draft, location.tokenizer)
    tokens = [prompt.tokens for prompt in bench.prompts[TEST][: config.exactness_prompts]]
    return {
        name: forward_agreement(model, tokens)
        for name, model in (("target", pair.target), ("draft", pair.draft))
        if isinstance(model, CausalLanguageModel) and model.forward != "hugging_face"
    }


def _bypass_notes(rows: "Rows", arms: Iterable[str]) -> list[str]:
    """How much of the learned controllers' arms was really decoded at their fallback."""
    notes = []
    for temperature in sorted({row["temperature"] for row in rows}):
        for arm in arms:
            runs = [row for row in rows if _bundle_of(row["arm"]) == arm and row["temperature"] == temperature]
            rounds, bypassed = (sum(row[name] for row in runs) for name in ("rounds", "bypassed"))
            if bypassed:
                share = f"{bypassed / rounds:.0%} of its rounds (static gamma instead)"
                notes.append(f"T={temperature:g}: {arm} stood aside in {share}")
    return notes


def _bundle_of(arm: str) -> str:
    """The bundle that an arm was loaded from, if from any."""
    branching = branch_arm(arm)
    return arm if branching is None else branching.preset


def _hash_name(arm: str) -> str:
    """Under which name the origin keeps the content hash of an arm's bundle."""
    return "bundle_sha256" if arm == HRAD else f"{arm}_bundle_sha256"


def _bundle_facts(card: dict[str, Any]) -> dict[str, Any]:
    """What a reader must know of the exported controller."""
    return {
        "selection": card.get("selection"),
        "thresholds": card.get("thresholds"),
        "calibrated_settings": card["contract"]["serving_range"]["settings"],
        "gamma": card["decoder"].get("gamma") or card["decoder"].get("drafter", {}).get("gamma"),
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


if __name__ == "__main__":
    from pipelines.cli import main

    main(["benchmark", *sys.argv[1:]])
