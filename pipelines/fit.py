"""Stage ``fit``: fit predictors, calibrate each for what it will serve, and export its bundle, tracked as one MLflow run.

Section ``fit.<predictor>`` of the parameters names its ``family`` and holds what that family is configured by. Fits use as many
threads as section ``machine`` says.

    draftwright fit --pair pystdlib --predictor survival source hrad --workers 3
"""

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.applicability import draftless, needs_draft, noted
from pipelines.device import read_device, read_device_profile
from pipelines.parameters import PARAMETERS, add_pair_arguments, load_parameters, read_machine, read_section
from pipelines.places import add_place_arguments, fill_in
from pipelines.scale import add_workers_argument, workers

if TYPE_CHECKING:
    from predictors.training.predictor import Materials, Predictor


FAMILIES = ("head", "stop", "survival", "source", "tree", "guess")
PLACES = {name: name for name in ("latency", "traces", "labels", "fit", "bundles")}  # below a pair's data folder
FAMILY = "family"  # its key in the parameters
UNTRAINED = ("guess",)  # chosen among what was traced: there is no network, and no MLflow run of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, nargs="+", help="keys under 'fit:' of the pair")
    add_place_arguments(parser, PLACES)
    add_workers_argument(parser)


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.tracking import Tracking
    from predictors.bundle import bundle_hash, write_bundle
    from predictors.training.predictor import Materials

    fill_in(args, PLACES)
    alone = draftless(args.pair, args.params)
    wanted = [
        (name, *load_predictor(args.pair, name, args.params))
        for name in args.predictor
        if not noted(
            alone and needs_draft(args.pair, name, args.params), args.bundles / name, args.fit / f"{name}.json"
        )
    ]
    profile = read_device_profile(args.latency, read_device(args.device)["slug"])
    make = partial(Materials.of, args.traces.resolve(), args.labels.resolve(), profile)
    threads = read_machine(args.pair, args.params).threads
    tracked = any(family not in UNTRAINED for _, family, _ in wanted)
    do = partial(exported, args.pair, threads, Tracking(args.pair).uri if tracked else None)
    with workers(make, args.workers, threads) as over:
        for (name, _, _), (card, tensors, quality) in over(do, wanted):
            write_bundle(args.bundles / name, card, tensors)
            quality["bundle_sha256"] = bundle_hash(args.bundles / name)
            write_json(args.fit / f"{name}.json", quality)
            print(f"{name}: {card['selection']['reason']}")


def exported(
    pair: str, threads: int, uri: str | None, materials: "Materials", wanted: "tuple[str, str, Predictor]"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Card, tensors and quality of a predictor, which is given by name, family and configuration: a worker's task."""
    from threadpoolctl import threadpool_limits

    from pipelines.reference import reference
    from pipelines.tracking import HEAD_TAG, Tracking
    from predictors.latency.serving import on_card
    from predictors.monitoring import KEY

    name, family, predictor = wanted
    with threadpool_limits(threads):  # sums are ordered by it
        if family in UNTRAINED:
            fitted = predictor.fit(name, materials)
            lineage = fitted.card.get("lineage", {})
        else:
            tracking = Tracking(pair, uri)
            parameters = asdict(predictor) | {FAMILY: family}  # type: ignore[call-overload]
            with tracking.new_run(name, parameters, {"pair": pair, "predictor": name}) as run_id:
                fitted = predictor.fit(name, materials, tracking.lightning_logger(run_id))
                # hashes of what it was made from, and of its network, which leads to its run
                lineage = fitted.card.get("lineage", {}) | {HEAD_TAG: tensors_sha256(fitted.tensors)}
                tracking.log(run_id, lineage, fitted.metrics)
        card = {"selection": {"predictor": name, "reason": fitted.sentence}, **fitted.card, "lineage": lineage}
        card |= on_card(materials.profile.serving)
        card[KEY] = reference(card, fitted.tensors, lambda: materials.text_table)
    origin = {"family": family, "predictor": name, "lineage": lineage, "profile_hash": materials.profile.profile_hash}
    return card, fitted.tensors, fitted.quality | origin


def load_predictor(pair: str, name: str, path: Path = PARAMETERS) -> "tuple[str, Predictor]":
    """The family of predictor ``name`` and its configuration, from section ``fit.<name>`` of the pair. `ValueError` for
    an unknown family, or a key that the family does not know."""
    values = read_section(pair, f"fit.{name}", path)
    family = str(values.get(FAMILY)) if isinstance(values, Mapping) else "unknown"
    if family not in FAMILIES:
        raise ValueError(f"{path}: pairs.{pair}.fit.{name}: family is {family!r}; name one of {', '.join(FAMILIES)}.")
    return family, load_parameters(predictor_class(family), pair, f"fit.{name}", path, besides=(FAMILY,))


def predictor_class(family: str) -> "type[Predictor]":
    """What holds a family's configuration; no other family is imported."""
    if family == "head":
        from predictors.training.heads.predictor import HeadPredictor

        return HeadPredictor
    if family == "stop":
        from predictors.training.stops.predictor import StopPredictor

        return StopPredictor
    if family == "survival":
        from predictors.training.survival.predictor import SurvivalPredictor

        return SurvivalPredictor
    if family == "source":
        from predictors.training.sources.predictor import SourcePredictor

        return SourcePredictor
    if family == "tree":
        from predictors.training.trees.predictor import TreePredictor

        return TreePredictor
    from predictors.training.guesses import GuessPredictor

    return GuessPredictor


def tensors_sha256(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of a network as safetensors writes it."""
    from safetensors.torch import save

    return hashlib.sha256(save({key: tensor.contiguous() for key, tensor in tensors.items()})).hexdigest()
