"""Stage ``selector``: train, calibrate and export the delayed-tree selector of one verification rule, tracked as one MLflow run.

    python -m pipelines.selector --pair pystdlib --rule specinfer data/pystdlib/traces/roots
        data/pystdlib/selectors/specinfer.json data/pystdlib/bundles/delayed_tree-specinfer --device … --latency …

Labels are made on the way: expected tokens from the root traces, seconds from the latency profile of this machine. Writes the
bundle, and a record of what the selector is worth on held-out documents beside the best static tree and the oracle.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from predictors.selection.rule import SelectionRule
    from predictors.training.root_table import RootTable
    from predictors.training.selector_fit import TrainedSelector
    from predictors.training.selector_rows import Labelling


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--rule", required=True, help="verification rule to choose trees for")
    parser.add_argument("roots", type=Path, help="folder of root traces")
    parser.add_argument("record", type=Path, help="JSON file to write: what the selector is worth")
    parser.add_argument("bundle", type=Path, help="bundle folder to write")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")


def run(args: argparse.Namespace) -> None:
    from safetensors.torch import save

    from pipelines.outputs import write_json
    from pipelines.tracking import HEAD_TAG, Tracking
    from predictors.bundle import write_bundle
    from predictors.latency import read_profile
    from predictors.selection.network import ServedSelector
    from predictors.training.root_table import RootTable
    from predictors.training.selector_evaluation import SelectorCalibration, calibrated_rule, evaluate_selector
    from predictors.training.selector_fit import SelectorConfig, fit_selector
    from predictors.training.selector_rows import Labelling

    config = load_parameters(SelectorConfig, args.pair, "selector.train", args.params)
    calibration = load_parameters(SelectorCalibration, args.pair, "selector.calibrate", args.params)
    device = json.loads(args.device.read_text())["slug"]
    table = RootTable.read(args.roots)
    labelling = Labelling.of(table, args.rule, read_profile(args.latency / f"{device}.json"))
    train, validation, test = (labelling.rows(table.rows(split)) for split in ("train", "validation", "test"))
    name = f"delayed_tree-{args.rule}"
    tags = {"pair": args.pair, "predictor": name, "traces_sha256": table.manifest.content_hash}
    tracking = Tracking(args.pair)
    candidates = []
    for goal in config.objectives:
        run_name = f"{name}-{goal}"
        with tracking.new_run(run_name, asdict(config) | {"rule": args.rule, "objective": goal}, tags) as run_id:
            trained = fit_selector(labelling, train, validation, goal, config, tracking.lightning_logger(run_id))
            served = ServedSelector(trained.network, train.features.device)
            rule, validation_gain = calibrated_rule(served, labelling, validation, calibration)
            measured = evaluate_selector(served, labelling, rule, test, calibration)
            tensors = {key: tensor.contiguous() for key, tensor in trained.network.state_dict().items()}
            head_sha256 = hashlib.sha256(save(tensors)).hexdigest()
            tracking.tag(run_id, **{HEAD_TAG: head_sha256})
            tracking.log(run_id, _tracked(measured) | {"validation_gain": validation_gain}, {})
        candidates.append(Candidate(goal, validation_gain, trained, rule, measured, tensors, head_sha256))
    best = max(candidates, key=lambda candidate: candidate.validation_gain)
    lineage = {"head_sha256": best.head_sha256, "traces_sha256": table.manifest.content_hash}
    write_bundle(args.bundle, build_card(table, labelling, best, name, lineage), best.tensors)
    history = {"objective": best.goal, "history": best.trained.history, "best_epoch": best.trained.best_epoch}
    history["objectives"] = {
        one.goal: {
            "validation_gain": one.validation_gain,
            "test_gain": one.measured["parts"]["all"]["selector"]["gain"],
        }
        for one in candidates
    }
    write_json(
        args.record, best.measured | history | {"lineage": lineage, "profile_hash": labelling.prices.profile_hash}
    )
    print(
        sentence(best.measured) + f"; trained for {best.goal}, margin {best.rule.margin:g}, κ {best.rule.rate_factor:g}"
    )


@dataclass(frozen=True)
class Candidate:
    """A selector trained for objective ``goal``, with its rule, its gain on validation roots and what it is worth."""

    goal: str
    validation_gain: float
    trained: "TrainedSelector"
    rule: "SelectionRule"
    measured: dict[str, Any]
    tensors: dict[str, "Tensor"]
    head_sha256: str


def build_card(
    table: "RootTable",
    labelling: "Labelling",
    best: Candidate,
    name: str,
    lineage: dict[str, str],
) -> dict[str, Any]:
    """The bundle's card (`predictors.controllers.delayed_tree`): a function of file contents only."""
    static, measured = labelling.actions[labelling.statics()[0].place], best.measured
    return {
        "kind": "delayed_tree",
        "contract": table.manifest.contract,
        "selection_spec": asdict(labelling.spec),
        "rule": asdict(best.rule),
        "prices": asdict(labelling.prices),
        "traffic": [asdict(made) for made in labelling.traffic],
        "decoder": {
            "method": "speculative",
            "drafter": {"kind": "delayed_tree", **asdict(static)},
            "verifier": labelling.rule,
        },
        "measured_quality": {"split": "test", **{key: measured[key] for key in ("roots", "documents", "parts")}},
        "selection": {"predictor": name, "objective": best.goal, "reason": sentence(measured)},
        "lineage": lineage,
    }


def sentence(measured: dict[str, Any]) -> str:
    """What choosing per root is worth on held-out documents."""
    part = measured["parts"]["all"]
    gain = part["selector"]["gain"]
    text = (
        f"{measured['rule']}: {gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%}) expected tokens/s over the best "
        f"static tree ({', '.join(f'{where}: {action}' for where, action in measured['static_actions'].items())})"
    )
    if "oracle" in part:
        text += f"; a perfect choice would bring at least {part['oracle']['gain']['value']:+.1%}"
    return text


def _tracked(measured: dict[str, Any]) -> dict[str, float | None]:
    """Flat MLflow metrics."""
    part = measured["parts"]["all"]
    names = [name for name in ("static", "selector", "oracle") if name in part]
    metrics = {
        f"test_{key}_{name}": part[name][key]["value"]
        for name in names
        for key in ("block_efficiency", "tokens_per_second")
    }
    return metrics | {"test_gain_over_best_static": part["selector"]["gain"]["value"], "margin": measured["margin"]}


if __name__ == "__main__":
    from pipelines.cli import main

    main(["selector", *sys.argv[1:]])
