"""Stage ``stopper``: train, calibrate and export one stop model, tracked as one MLflow run.

    python -m pipelines.stopper --pair pystdlib --predictor early_stop-1 data/pystdlib/traces/tokens
        data/pystdlib/stoppers/early_stop-1.json data/pystdlib/bundles/early_stop-1 --device … --latency …

Its rule is chosen by what drafting costs on this machine. Writes the bundle, and a record of what the model knows about held-out
documents and what its rule is worth there beside the best static length, the confidence rule and a perfect one.
"""

import argparse
import hashlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from predictors.training.stop_evaluation import Chosen
    from predictors.training.stop_fit import StopTrainConfig, TrainedStopModel
    from predictors.training.token_table import TokenManifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="stop model to train: a subsection of stopper.train")
    parser.add_argument("tokens", type=Path, help="folder of token traces")
    parser.add_argument("record", type=Path, help="JSON file to write: what the model is worth")
    parser.add_argument("bundle", type=Path, help="bundle folder to write")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")
    parser.add_argument(
        "--texts", type=Path, help="folder of text traces, for the card's reference (draftwright drift)"
    )


def run(args: argparse.Namespace) -> None:
    from safetensors.torch import save

    from pipelines.outputs import write_json
    from pipelines.reference import KEY, recorded_texts, reference
    from pipelines.tracking import HEAD_TAG, Tracking
    from predictors.bundle import write_bundle
    from predictors.latency import draft_cost
    from predictors.latency.actions import undisturbed
    from predictors.latency.serving import on_card
    from predictors.training.rule_calibration import RuleCalibration
    from predictors.training.stop_evaluation import StopStudy, choose, evaluate
    from predictors.training.stop_fit import StopTrainConfig, fit_stop_model
    from predictors.training.stop_replay import stop_costs
    from predictors.training.token_table import TokenTable

    config = load_parameters(StopTrainConfig, args.pair, f"stopper.train.{args.predictor}", args.params)
    calibration = load_parameters(RuleCalibration, args.pair, "stopper.calibrate", args.params)
    device = read_device(args.device)["slug"]
    profile = read_device_profile(args.latency, device)
    if args.texts is not None:
        recorded_texts(args.texts)  # traces that cannot be read are to end the stage before training
    table = TokenTable.read(args.tokens)
    manifest = table.manifest
    train, validation, test = (table.rows(split) for split in ("train", "validation", "test"))
    context = float(train.column("position").mean())
    features = manifest.stop_spec.size(config.inputs)
    costs = stop_costs(profile, table.settings, manifest.gamma_max, context, features)
    tracking = Tracking(args.pair)
    tags = {"pair": args.pair, "predictor": args.predictor, "traces_sha256": manifest.content_hash}
    with tracking.new_run(args.predictor, asdict(config), tags) as run_id:
        model = fit_stop_model(train, validation, config, tracking.lightning_logger(run_id))
        tensors = {key: tensor.contiguous() for key, tensor in model.network.state_dict().items()}
        head_sha256 = hashlib.sha256(save(tensors)).hexdigest()
        tracking.tag(run_id, **{HEAD_TAG: head_sha256})
        known, held_out, unseen = (StopStudy(part, model, config, costs) for part in (train, validation, test))
        chosen = choose(known, held_out, calibration)
        measured = evaluate(unseen, chosen, calibration)
        tracking.log(run_id, _tracked(measured) | {"validation_gain": chosen.validation_gain}, {})
    lineage = {"head_sha256": head_sha256, "traces_sha256": manifest.content_hash}
    draft = draft_cost(undisturbed(profile), manifest.gamma_max, context, sampled=True)
    prices = {
        "draft_cost": draft,
        "gamma": manifest.gamma_max,
        "context": context,
        "profile_hash": profile.profile_hash,
    }
    card = build_card(args.predictor, manifest, config, model, chosen, measured, lineage)
    card |= {"prices": prices, **on_card(profile.serving)}
    write_bundle(args.bundle, card | {KEY: reference(card, tensors, args.texts)}, tensors)
    learned = {"predictor": args.predictor, "history": model.history, "best_epoch": model.best_epoch}
    rules = {"settings": [asdict(made) for made in chosen.settings], "validation_gain": chosen.validation_gain}
    seconds = {"rounds": costs.rounds_SM.tolist(), "draft": costs.draft_S.tolist(), "question": costs.question}
    profiled = {"costs": seconds, "profile_hash": profile.profile_hash, "lineage": lineage}
    write_json(args.record, measured | learned | rules | profiled)
    print(sentence(args.predictor, measured))


def build_card(
    predictor: str,
    manifest: "TokenManifest",
    config: "StopTrainConfig",
    model: "TrainedStopModel",
    chosen: "Chosen",
    measured: dict[str, Any],
    lineage: dict[str, str],
) -> dict[str, Any]:
    """The bundle's card (`predictors.controllers.early_stop`): a function of file contents only."""
    return {
        "kind": config.kind,
        "contract": manifest.contract,
        "stop_spec": asdict(manifest.stop_spec),
        "inputs": config.inputs,
        "network": asdict(config.network),
        "calibration": asdict(model.calibration),
        "settings": [asdict(made) for made in chosen.settings],
        "max_distance": chosen.max_distance,
        "decoder": {
            "method": "speculative",
            "drafter": {"kind": "chain", "gamma": manifest.gamma_max},
            "verifier": "block",
        },
        "measured_quality": {"split": "test", "tokens": measured["tokens"]["all"], "parts": measured["parts"]},
        "selection": {"predictor": predictor, "reason": sentence(predictor, measured)},
        "lineage": lineage,
    }


def sentence(predictor: str, measured: dict[str, Any]) -> str:
    """What the model knows and its rule is worth on held-out documents."""
    quality = measured["tokens"]["all"]
    parts = "; ".join(
        f"{name}: {_percent(part['policies']['model']['gain'])} expected tokens/s over {part['static_length']} tokens always, "
        f"confidence {part['policies']['confidence']['gain']['value']:+.1%}, perfect "
        f"{part['policies']['perfect']['gain']['value']:+.1%}"
        for name, part in measured["parts"].items()
    )
    area = "unknown" if quality["auroc"] is None else f"{quality['auroc']:.3f}"
    return f"{predictor}: AUROC {area}, ECE {quality['ece']:.3f}; {parts}"


def _percent(gain: dict[str, float]) -> str:
    return f"{gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})"


def _tracked(measured: dict[str, Any]) -> dict[str, float | None]:
    """Flat MLflow metrics."""
    quality = {f"test_{name}": measured["tokens"]["all"][name] for name in ("auroc", "brier", "ece")}
    gains = {
        f"test_gain_{place}_{name}".replace("=", ""): policy["gain"]["value"]
        for place, part in measured["parts"].items()
        for name, policy in part["policies"].items()
    }
    return quality | gains


if __name__ == "__main__":
    from pipelines.cli import main

    main(["stopper", *sys.argv[1:]])
