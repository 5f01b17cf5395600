"""Stage ``selector``: train, calibrate and export the delayed-tree selector of one verification rule, tracked as one MLflow run.

    python -m pipelines.selector --pair pystdlib --rule specinfer data/pystdlib/traces/roots
        data/pystdlib/selectors/specinfer.json data/pystdlib/bundles/delayed_tree-specinfer --device … --latency …

Labels are made on the way: expected tokens from the root traces, seconds from the latency profile of this machine. Writes the
bundle, and a record of what the selector is worth on held-out documents beside the best static tree and the oracle.
"""

import argparse
import hashlib
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import add_pair_arguments, load_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.tracking import Tracking
    from predictors.latency import LatencyProfile
    from predictors.selection.rule import SelectionRule
    from predictors.training.root_table import RootTable
    from predictors.training.rule_calibration import RuleCalibration
    from predictors.training.selector_fit import Candidate, SelectorConfig, TrainedSelector
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
    from pipelines.outputs import write_json
    from pipelines.tracking import Tracking
    from predictors.bundle import write_bundle
    from predictors.latency.serving import on_card
    from predictors.training.root_table import RootTable
    from predictors.training.rule_calibration import RuleCalibration
    from predictors.training.selector_fit import SelectorConfig

    config = load_parameters(SelectorConfig, args.pair, "selector.train", args.params)
    calibration = load_parameters(RuleCalibration, args.pair, "selector.calibrate", args.params)
    device = read_device(args.device)["slug"]
    profile = read_device_profile(args.latency, device)
    table = RootTable.read(args.roots)
    tags = {
        "pair": args.pair,
        "predictor": predictor_name(args.rule),
        "traces_sha256": table.manifest.content_hash,
    }
    training = Training(args.rule, table, profile, config, calibration, Tracking(args.pair), tags)
    made = [training.run(candidate) for candidate in config.candidates]
    best = max(made, key=lambda one: one.validation_gain)
    lineage = {"head_sha256": best.head_sha256, "traces_sha256": table.manifest.content_hash}
    card = build_card(table.manifest.contract, best, predictor_name(args.rule), lineage)
    write_bundle(args.bundle, card | on_card(profile.serving), best.tensors)
    tried = {
        one.name: {
            "validation_gain": one.validation_gain,
            "test_gain": one.measured["parts"]["all"]["selector"]["gain"],
        }
        for one in made
    }
    learned = {"candidate": best.name, "candidates": tried, "validation_tokens_per_second": best.validation_rate}
    learned |= {"validation": best.validation_rates}
    learned |= {"history": best.trained.history, "best_epoch": best.trained.best_epoch, "lineage": lineage}
    write_json(args.record, best.measured | learned | {"profile_hash": best.labelling.prices.profile_hash})
    print(
        f"{sentence(best.measured)}; {best.name}, chosen by {best.rule.score} with margin {best.rule.margin:g}, "
        f"κ {best.rule.rate_factor:g}"
    )


def predictor_name(rule: str) -> str:
    """What MLflow and the bundle call the selector of a verification rule."""
    return f"delayed_tree-{rule}"


@dataclass(frozen=True)
class Trained:
    """A candidate with its rule, what it is worth on test roots, and on validation roots its gain over static and its rate, also
    by sampling setting beside the static choice's."""

    name: str
    labelling: "Labelling"
    trained: "TrainedSelector"
    rule: "SelectionRule"
    measured: dict[str, Any]
    tensors: dict[str, "Tensor"]
    head_sha256: str
    validation_gain: float
    validation_rate: float
    validation_rates: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Training:
    """What all candidates for one verification ``rule`` are trained from, each in an MLflow run of its own."""

    rule: str
    table: "RootTable"
    profile: "LatencyProfile"
    config: "SelectorConfig"
    calibration: "RuleCalibration"
    tracking: "Tracking"
    tags: dict[str, str]

    def run(self, candidate: "Candidate") -> Trained:
        """Train, calibrate on validation roots and evaluate on test roots."""
        from safetensors.torch import save

        from pipelines.tracking import HEAD_TAG
        from predictors.selection.network import ServedSelector
        from predictors.training.selector_evaluation import (
            at_places,
            calibrated_rule,
            evaluate_selector,
            rates_by_setting,
        )
        from predictors.training.selector_fit import fit_selector
        from predictors.training.selector_objective import SCORED
        from predictors.training.selector_rows import Labelling

        table, tracking = self.table, self.tracking
        labelling = Labelling.of(table, self.rule, self.profile, candidate.states)
        train, validation, test = (labelling.rows(table.rows(split)) for split in ("train", "validation", "test"))
        parameters = asdict(self.config) | {"rule": self.rule, "candidate": candidate.name}
        name = f"{predictor_name(self.rule)}-{candidate.name}"
        with tracking.new_run(name, parameters, self.tags) as run_id:
            logger = tracking.lightning_logger(run_id)
            trained = fit_selector(labelling, train, validation, candidate.objective, self.config, logger)
            served = ServedSelector(trained.network, train.features.device)
            scored = SCORED[candidate.objective]
            rule, gain = calibrated_rule(served, labelling, validation, scored, self.calibration)
            measured = evaluate_selector(served, labelling, rule, test, self.calibration)
            tensors = {key: tensor.contiguous() for key, tensor in trained.network.state_dict().items()}
            head_sha256 = hashlib.sha256(save(tensors)).hexdigest()
            tracking.tag(run_id, **{HEAD_TAG: head_sha256})
            tracking.log(run_id, _tracked(measured) | {"validation_gain": gain}, {})
        rate = at_places(validation, validation.static_N, 0.0).throughput * (1 + gain)
        rates = rates_by_setting(served, validation, rule)
        return Trained(candidate.name, labelling, trained, rule, measured, tensors, head_sha256, gain, rate, rates)


def build_card(contract: dict[str, Any], best: Trained, name: str, lineage: dict[str, str]) -> dict[str, Any]:
    """The bundle's card (`predictors.controllers.delayed_tree`): a function of file contents only."""
    labelling, measured = best.labelling, best.measured
    static = labelling.actions[labelling.statics()[0].place]
    return {
        "kind": "delayed_tree",
        "contract": contract,
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
        "selection": {"predictor": name, "candidate": best.name, "reason": sentence(measured)},
        "lineage": lineage,
    }


def sentence(measured: dict[str, Any]) -> str:
    """What choosing per root is worth on held-out documents."""
    part = measured["parts"]["all"]
    gain, most = part["selector"]["gain"], part["oracle_same_draws"]["gain"]["value"]
    least = f"{part['oracle']['gain']['value']:+.1%}" if "oracle" in part else "an unknown gain"
    actions = ", ".join(f"{where}: {action}" for where, action in measured["static_actions"].items())
    return (
        f"{measured['rule']}: {gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%}) expected tokens/s over the best "
        f"static tree ({actions}); a perfect choice would bring between {least} and {most:+.1%}"
    )


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
