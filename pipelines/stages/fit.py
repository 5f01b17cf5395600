"""Stage ``fit``: fit predictors, calibrate each for what it will serve, and export its bundle, tracked as one MLflow run.

Section ``fit`` of the parameters names the predictors; a name of a recipe in ``pipelines/predictors.yaml`` is enough. By default
all that it names are fitted, and what it names no more is removed. Each is fitted by itself, on one thread, and kept if nothing
that it was fitted from has changed. As many are fitted at once as section ``machine`` has threads.

    draftwright fit --pair smollm2 --predictor survival source hrad
"""

import argparse
import hashlib
import importlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.outputs import draftless, needs_draft, noted
from pipelines.parameters import PARAMETERS, add_pair_arguments, parsed, read_machine, read_predictor, read_section
from pipelines.places import add_place_arguments, fill_in, read_device, read_device_profile
from pipelines.terminal import count
from predictors.schema import MANIFEST

if TYPE_CHECKING:
    from predictors.training.predictor import Materials, Predictor

    Wanted = tuple[str, str, Predictor]  # name, family and configuration of a predictor


FAMILIES = {
    "head": "head_predictor.HeadPredictor",
    "stop": "stop_predictor.StopPredictor",
    "survival": "survival_predictor.SurvivalPredictor",
    "grow": "grow_predictor.GrowPredictor",
    "source": "source_predictor.SourcePredictor",
    "tree": "tree_predictor.TreePredictor",
    "guess": "guesses.GuessPredictor",
}
PLACES = {name: name for name in ("latency", "traces", "labels", "fit", "bundles")}  # below a pair's data folder
FAMILY = "family"  # its key in the parameters
UNTRAINED = ("guess",)  # chosen among what was traced: there is no network, and no MLflow run of it
FITTING = ("predictors", "runtime", "pipelines/stages/fit.py", "pipelines/measuring/reference.py")
INPUTS = "inputs_sha256"  # in a predictor's record: of all that it was fitted from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", nargs="+", help="keys under 'fit:' of the pair (default: all of them)")
    add_place_arguments(parser, PLACES)
    help_text = "fit so many at once, in processes that each read the traces (default: threads of section machine)"
    parser.add_argument("--workers", type=count, help=help_text)


def run(args: argparse.Namespace) -> None:
    from joblib import Parallel, delayed

    from pipelines.registry.tracking import Tracking

    fill_in(args, PLACES)
    named = read_section(args.pair, "fit", args.params)
    if not args.predictor:
        remove_others(args.bundles, args.fit, named)
    alone = draftless(args.pair, args.params)
    made = materials(args)
    sources = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in read_from(args) if path.is_file()}
    sources["profile"] = made.profile.profile_hash
    wanted = []
    for name in args.predictor or named:
        one = name, *load_predictor(args.pair, name, args.params)
        left_out = alone and needs_draft(args.pair, name, args.params)
        if not noted(left_out, args.bundles / name, args.fit / f"{name}.json"):
            wanted.append((one, fingerprint(one, sources)))
    due = [(one, inputs) for one, inputs in wanted if not kept(args, one[0], inputs)]
    for name in sorted({one[0] for one, _ in wanted} - {one[0] for one, _ in due}):
        print(f"{name}: kept, as nothing that it was fitted from has changed")
    tracked = any(family not in UNTRAINED for (_, family, _), _ in due)
    uri = Tracking(args.pair).uri if tracked else None
    workers = max(1, min(args.workers or read_machine(args.pair, args.params).threads, len(due)))
    Parallel(n_jobs=workers)(delayed(fit_all)(args, due[place::workers], uri) for place in range(workers))


def remove_others(bundles: Path, records: Path, named: Mapping[str, Any]) -> None:
    """Remove what lies there of predictors that are not ``named``."""
    for folder in bundles.glob("*/"):
        if folder.name not in named:
            shutil.rmtree(folder)
    for record in records.glob("*.json"):
        if record.stem not in named:
            record.unlink()


def read_from(args: argparse.Namespace) -> list[tuple[str, Path]]:
    """Files whose contents decide what is fitted, by name: manifests of traces, which hold their shards' hashes, and labels."""
    traces = [(of, args.traces / of / MANIFEST) for of in ("texts", "trees", "guesses")]
    return [*traces, *((path.name, path) for path in sorted(args.labels.glob("*.parquet")))]


def fingerprint(wanted: "Wanted", sources: Mapping[str, str]) -> str:
    """SHA-256 of all that a predictor is fitted from: its configuration, the ``sources`` and the code."""
    from pipelines.measuring.provenance import source_hash
    from pipelines.outputs import digest

    name, family, predictor = wanted
    return digest([name, family, asdict(predictor), dict(sources), source_hash(FITTING)])  # type: ignore[call-overload]


def kept(args: argparse.Namespace, name: str, inputs: str) -> bool:
    """Tell whether a finished fit from the same ``inputs`` lies there, undamaged."""
    from pipelines.outputs import read_json
    from predictors.bundle import bundle_hash

    try:
        known = read_json(args.fit / f"{name}.json")
        return bool(known.get(INPUTS) == inputs and known["bundle_sha256"] == bundle_hash(args.bundles / name))
    except (ValueError, OSError):
        return False  # missing or damaged


def materials(args: argparse.Namespace) -> "Materials":
    from predictors.training.predictor import Materials

    profile = read_device_profile(args.latency, read_device(args.device)["slug"])
    return Materials.of(args.traces.resolve(), args.labels.resolve(), profile)


def fit_all(args: argparse.Namespace, due: "Sequence[tuple[Wanted, str]]", uri: str | None) -> None:
    """Fit predictors one after the other, and write each as soon as it is fitted; texts are read once for all."""
    from pipelines.outputs import write_json
    from predictors.bundle import bundle_hash, write_bundle

    made = materials(args)
    for wanted, inputs in due:
        name = wanted[0]
        card, tensors, quality = exported(args.pair, uri, made, wanted)
        write_bundle(args.bundles / name, card, tensors)
        hashes = {"bundle_sha256": bundle_hash(args.bundles / name), INPUTS: inputs}
        write_json(args.fit / f"{name}.json", quality | hashes)
        print(f"{name}: {card['selection']['reason']}", flush=True)


def exported(
    pair: str, uri: str | None, materials: "Materials", wanted: "Wanted"
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Card, tensors and quality of a predictor."""
    from threadpoolctl import threadpool_limits

    from pipelines.measuring.reference import reference
    from pipelines.registry.tracking import HEAD_TAG, Tracking
    from predictors.monitoring import KEY

    name, family, predictor = wanted
    with threadpool_limits(1):  # sums are ordered by it
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
        card[KEY] = reference(card, fitted.tensors, lambda: materials.text_table)
    origin = {"family": family, "predictor": name, "lineage": lineage, "profile_hash": materials.profile.profile_hash}
    return card, fitted.tensors, fitted.quality | origin


def load_predictor(pair: str, name: str, path: Path = PARAMETERS) -> "tuple[str, Predictor]":
    """The family of predictor ``name`` and its configuration, from section ``fit.<name>`` of the pair and its recipe.

    `ValueError` for an unknown family, or a key that the family does not know.
    """
    values = read_predictor(pair, name, path)
    family = str(values.get(FAMILY, "unknown"))
    if family not in FAMILIES:
        raise ValueError(f"{path}: pairs.{pair}.fit.{name}: family is {family!r}; name one of {', '.join(FAMILIES)}.")
    return family, parsed(predictor_class(family), values, pair, f"fit.{name}", path, (FAMILY,), threads=1)


def predictor_class(family: str) -> "type[Predictor]":
    """Import what holds a family's configuration, and no other family."""
    module, _, name = FAMILIES[family].rpartition(".")
    made: type[Predictor] = getattr(importlib.import_module(f"predictors.training.{module}"), name)
    return made


def tensors_sha256(tensors: Mapping[str, Any]) -> str:
    """SHA-256 of a network as safetensors writes it."""
    from safetensors.torch import save

    return hashlib.sha256(save({key: tensor.contiguous() for key, tensor in tensors.items()})).hexdigest()
