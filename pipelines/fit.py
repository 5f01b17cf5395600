"""Stage ``fit``: fit one predictor, calibrate it for what it will serve, and export its bundle, tracked as one MLflow run.

Section ``fit.<predictor>`` of the parameters names its ``family`` and holds what that family is configured by.

    draftwright fit --pair pystdlib --predictor hrad --device data/device.json --latency data/pystdlib/latency
        --traces data/pystdlib/traces --labels data/pystdlib/labels data/pystdlib/fit/hrad.json data/pystdlib/bundles/hrad
"""

import argparse
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.device_file import read_device
from pipelines.device_profile import read_device_profile
from pipelines.parameters import PARAMETERS, add_pair_arguments, load_parameters, read_section

if TYPE_CHECKING:
    from predictors.training.predictor import Fitted, Materials, Predictor


def _head() -> "type[Predictor]":
    from predictors.training.heads.predictor import HeadPredictor

    return HeadPredictor


def _stop() -> "type[Predictor]":
    from predictors.training.stops.predictor import StopPredictor

    return StopPredictor


def _survival() -> "type[Predictor]":
    from predictors.training.survival.predictor import SurvivalPredictor

    return SurvivalPredictor


def _source() -> "type[Predictor]":
    from predictors.training.sources.predictor import SourcePredictor

    return SourcePredictor


def _tree() -> "type[Predictor]":
    from predictors.training.trees.predictor import TreePredictor

    return TreePredictor


def _guess() -> "type[Predictor]":
    from predictors.training.guesses.predictor import GuessPredictor

    return GuessPredictor


FAMILIES: Mapping[str, "Callable[[], type[Predictor]]"] = {
    "head": _head,
    "stop": _stop,
    "survival": _survival,
    "source": _source,
    "tree": _tree,
    "guess": _guess,
}  # imported only where one is fitted
FAMILY = "family"  # its key in the parameters
UNTRAINED = ("guess",)  # chosen among what was traced: there is no network, and no MLflow run of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="key under 'fit:' of the pair")
    parser.add_argument("--device", type=Path, required=True, help="JSON file of the device stage")
    parser.add_argument("--latency", type=Path, required=True, help="folder of the latency stage")
    parser.add_argument("--traces", type=Path, required=True, help="folder of traces: texts, trees, guesses")
    parser.add_argument("--labels", type=Path, required=True, help="folder of label tables")
    parser.add_argument("quality", type=Path, help="JSON file to write: what the predictor is worth")
    parser.add_argument("bundle", type=Path, help="bundle folder to write")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.reference import reference
    from predictors.bundle import bundle_hash, write_bundle
    from predictors.latency.serving import on_card
    from predictors.monitoring import KEY
    from predictors.training.predictor import Materials

    family, predictor = load_predictor(args.pair, args.predictor, args.params)
    profile = read_device_profile(args.latency, read_device(args.device)["slug"])
    materials = Materials.of(args.traces, args.labels, profile)
    fitted, lineage = fit_tracked(args.pair, args.predictor, family, predictor, materials)
    card = {"selection": {"predictor": args.predictor, "reason": fitted.sentence}, **fitted.card, "lineage": lineage}
    card |= on_card(profile.serving)
    write_bundle(args.bundle, card | {KEY: reference(card, fitted.tensors, materials.texts)}, fitted.tensors)
    origin = {"family": family, "predictor": args.predictor, "lineage": lineage, "profile_hash": profile.profile_hash}
    write_json(args.quality, fitted.quality | origin | {"bundle_sha256": bundle_hash(args.bundle)})
    print(f"{args.predictor}: {fitted.sentence}")


def load_predictor(pair: str, name: str, path: Path = PARAMETERS) -> "tuple[str, Predictor]":
    """The family of predictor ``name`` and its configuration, from section ``fit.<name>`` of the pair.

    Raises
    ------
    ValueError
        For an unknown family, or a key that the family does not know.
    """
    values = read_section(pair, f"fit.{name}", path)
    family = str(values.get(FAMILY)) if isinstance(values, Mapping) else "unknown"
    if family not in FAMILIES:
        raise ValueError(f"{path}: pairs.{pair}.fit.{name}: family is {family!r}; name one of {', '.join(FAMILIES)}.")
    return family, load_parameters(FAMILIES[family](), pair, f"fit.{name}", path, besides=(FAMILY,))


def fit_tracked(
    pair: str, name: str, family: str, predictor: "Predictor", materials: "Materials"
) -> "tuple[Fitted, dict[str, str]]":
    """The fitted predictor and its lineage: hashes of what it was made from, and of its network, which leads to its run."""
    if family in UNTRAINED:
        fitted = predictor.fit(name, materials)
        return fitted, fitted.card.get("lineage", {})
    from pipelines.tracking import HEAD_TAG, Tracking

    tracking = Tracking(pair)
    parameters = asdict(predictor) | {"family": family}  # type: ignore[call-overload]
    with tracking.new_run(name, parameters, {"pair": pair, "predictor": name}) as run_id:
        fitted = predictor.fit(name, materials, tracking.lightning_logger(run_id))
        lineage = fitted.card.get("lineage", {}) | {HEAD_TAG: tensors_sha256(fitted.tensors)}
        tracking.tag(run_id, **lineage)
        tracking.log(run_id, fitted.metrics)
    return fitted, lineage


def tensors_sha256(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of a network as safetensors writes it."""
    from safetensors.torch import save

    return hashlib.sha256(save({key: tensor.contiguous() for key, tensor in tensors.items()})).hexdigest()
