"""A trial of a bundle, from folders to evidence: what the stage ``trial`` and ``draftwright promote`` share.

Whether it can be tried at all, whether it is exact and how well its model is calibrated; and its speed. Challenger, champion,
plain decoding and static chains are timed together, interleaved, on documents that nothing was trained on, at every sampling
setting that challenger or champion was captured at. An interrupted trial goes on where it stopped.
"""

import argparse
import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from pipelines.gate.evidence import Comparison, GateEvidence, compared
from pipelines.gate.plan import TrialConfig, load_plan
from pipelines.gate.verdict import CHALLENGER, CHAMPION, RESERVE
from pipelines.measuring.arm_rows import ArmRow, chain, expanded
from pipelines.measuring.arms import ArmBuilder
from pipelines.measuring.bench import Bench, Blocks, allocated, mix_of, open_bench
from pipelines.measuring.exactness import float32_pair, format_of, greedy_differences
from pipelines.measuring.gain import TimedDecodes
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.names import CHAIN, CHOICES, PLAIN, PLAIN_FAMILY, PROVENANCE, TEST, VALIDATION
from pipelines.measuring.recorded import Accounts, RecordedTexts, same_decoders
from pipelines.measuring.tables import Rows, write_timed
from pipelines.outputs import digest, read_json, write_json
from pipelines.places import read_device, read_device_profile, read_pair
from pipelines.prompt_table import Prompt, read_prompts
from predictors.bundle import CARD, TENSORS, bundle_hash, read_bundle
from predictors.controllers import is_learned
from predictors.controllers.delayed_tree import DelayedTree
from predictors.sampling import SamplingSettings
from runtime import Decoder, ModelPair, load_decoder
from runtime.decoding.base import RoutedDecoder
from runtime.decoding.branch_parallel import BranchParallelDecoder


def attempt(
    args: argparse.Namespace, predictor: str, bundles: Mapping[str, Path], reserve: bool = False
) -> GateEvidence:
    """Evidence on the ``challenger`` among ``bundles``, timed with the ``champion`` there, if any; on prompts of the ``reserve``,
    too, if that is said.

    Reads from ``args`` what `open_bench` does, ``latency``, and ``output``, below which decodes and provenance are written. A
    bundle that does not serve the pair is not timed. The static chains that tuning found fastest, below ``args.tuning`` if there
    is such a folder, are rivals besides the trial's own.
    """
    for folder in bundles.values():
        lacking = [name for name in (CARD, TENSORS) if not (folder / name).is_file()]
        if lacking:
            raise ValueError(f"{folder} is no bundle, it lacks {' and '.join(lacking)}. Export it first (dvc repro).")
    hashes = {f"{name}_sha256": bundle_hash(folder) for name, folder in bundles.items()}
    champion = hashes.get(f"{CHAMPION}_sha256")
    config, bounds = load_plan(args.pair, args.params)
    config = replace(config, gammas=tuple(sorted({*config.gammas, *_tuned_lengths(args)})))
    texts = RecordedTexts(args.texts, config.max_new_tokens)
    prompts = prompts_of(args.prompts, config, texts, reserve)
    checked = [prompt.tokens for prompt in prompts[: config.exactness_prompts]]
    place = read_pair(args.pair_folder)
    pair = float32_pair(place, checked, config.max_new_tokens) or ModelPair.load(**place.models, whole=True)
    problem = problem_of(bundles[CHALLENGER], pair)
    who = {"pair": args.pair, "predictor": predictor, "bundle_sha256": hashes[f"{CHALLENGER}_sha256"]}
    who |= {"champion": champion, "reserve": reserve, "problem": problem}
    if problem is not None:
        unknown = Comparison(gains={}, reference=None, settings={}, slices={}, documents=())
        return GateEvidence(**who, **vars(unknown), exactness={}, calibration_error=None, trained_documents=())
    old = None if champion is None else problem_of(bundles[CHAMPION], pair)
    if old is not None:
        raise ValueError(f"the champion cannot be timed ({old}). Roll it back first (draftwright rollback).")
    exactness = exact(pair, bundles[CHALLENGER], checked, config.max_new_tokens)
    del pair  # the one that is timed is loaded next
    gc.collect()
    named = {"prompts_sha256": digest([prompt.tokens for prompt in prompts])}
    bench = open_bench(args, config, {}, {**hashes, "texts_sha256": texts.sha256, **named})
    trained = {one.document for split in ("train", VALIDATION) for one in read_prompts(args.prompts, split)}
    found = compared(timed_on(bench, args, config, bundles, prompts, texts, trained), bounds, champion is not None)
    calibration = calibration_of(bundles[CHALLENGER])
    origin = bench.origin(args.pair)
    write_json(bench.folder / PROVENANCE, origin)
    bench.log.remove()  # no earlier: what fails before is not timed again
    return GateEvidence(
        **who,
        **vars(found),
        exactness=exactness,
        calibration_error=calibration.error,
        exemption=calibration.exemption,
        trained_documents=tuple(sorted(trained)),
        origin={**origin, "lineage": read_bundle(bundles[CHALLENGER]).card.get("lineage")},
    )


def timed_on(
    bench: Bench,
    args: argparse.Namespace,
    config: TrialConfig,
    bundles: Mapping[str, Path],
    prompts: Sequence[Prompt],
    texts: RecordedTexts,
    trained: set[str],
) -> TimedDecodes:
    """Time all arms on ``prompts``, and replay them on recorded test ``texts``. `ValueError` if one of these is of a document
    that was ``trained`` on; timed ones are the gate's to judge."""
    texts.require(bench.pair)
    recorded = texts.of(TEST)
    if learned := sorted({text.document for text in recorded} & trained):
        raise ValueError(
            f"recorded texts are of documents that were trained on ({', '.join(learned[:3])}): what replay says of them is no "
            "evidence. Collect the texts of these prompts (dvc repro traces)."
        )
    settings = settings_of(*bundles.values())
    arms = ArmBuilder(bench.pair, Path(), config.max_new_tokens).build(arms_of(config, bundles))
    with tqdm(desc="trial", unit="decode") as bar:
        harness = Harness(Blocks(bench.log, bar), settings, config.seed, config.repeats)
        decodes, rounds = apart(harness.race(arms, prompts))
    decoders = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
    replayed: Rows = []
    if recorded and bench.pair.draft is not None:
        profile = read_device_profile(args.latency, bench.device["slug"])
        accounts = Accounts(profile, decoders, settings)
        decodes, replayed = accounts.profiled(decodes, rounds), accounts.replayed(recorded)
    write_timed(bench.folder, args.pair, decodes, rounds)
    return TimedDecodes.of(decodes, replayed, same_decoders(decoders, settings))


def prompts_of(folder: Path, config: TrialConfig, texts: RecordedTexts, reserve: bool) -> list[Prompt]:
    """Test prompts below ``folder``, recorded ones first, of every slice as many as its share of the documents; and such of the
    ``reserve``. `ValueError` if there are none."""
    known = read_prompts(folder, TEST)
    if not known:
        raise ValueError(f"{folder} has no {TEST} prompts: there is nothing to try a bundle on. Draw some.")
    mix = mix_of(known)
    chosen = allocated(texts.first(known), mix, config.test_prompts)
    if not reserve:
        return chosen
    further = allocated(read_prompts(folder, RESERVE), mix, config.reserve_prompts)
    if not {prompt.document for prompt in further} - {prompt.document for prompt in chosen}:
        raise ValueError(f"the {RESERVE} has no new document. Add documents, or raise prompts.reserve, and draw again.")
    return chosen + further


def _tuned_lengths(args: argparse.Namespace) -> Iterator[int]:
    """Lengths of the static chains that tuning found fastest on this machine, one for every sampling setting that has any."""
    place = getattr(args, "tuning", None)
    path = None if place is None else place / read_device(args.device)["slug"] / CHOICES
    for choice in read_json(path, kind=list) if path is not None and path.is_file() else []:
        for one in choice["candidates"]:
            decoder = one["served"].get("decoder", {})
            drafted = decoder.get("controller", {}).get("gamma") or decoder.get("drafter", {}).get("gamma")
            if one["name"] == choice["static"] and drafted:
                yield drafted


def settings_of(*bundles: Path) -> tuple[SamplingSettings, ...]:
    """The sampling settings that any of ``bundles`` was captured at; whether it samples invariantly there is its own affair."""
    known = (one for bundle in bundles for one in read_bundle(bundle).contract.serving_range.sampling)
    return tuple(dict.fromkeys(one for one in known if not one.invariant))


def problem_of(bundle: Path, pair: ModelPair) -> str | None:
    """Why ``bundle`` cannot be read, does not serve ``pair``, or would be timed on a virtual clock; ``None``: it can."""
    try:
        settings_of(bundle)
        decoder = load_decoder(bundle, pair)
    except ValueError as error:
        return str(error)
    for name, one in parts_of(decoder).items():
        who = f"{bundle}: {name or 'its decoder'}"
        if isinstance(one, BranchParallelDecoder) and one.overlap.virtual:
            remedy = "Export it with overlap 'auto', 'threads' or 'streams'."
            if one.config.overlap == "auto":
                remedy = "Its overlap 'auto' finds a single core here: try it where there are more."
            return (
                f"{who} drafts and verifies sequentially (overlap 'none'), so its times would be a virtual clock's, not the wall "
                f"clock's. {remedy}"
            )
    return None


def parts_of(decoder: Decoder) -> dict[str, Decoder]:
    """The decoders that serve requests, by name: a routed decoder's are its routes'; any other is its own, without a name."""
    if not isinstance(decoder, RoutedDecoder):
        return {"": decoder}
    return {
        ", ".join(filter(None, (f"route {place} ({settings.name})", name))): part
        for place, (settings, route) in enumerate(decoder.routes, 1)
        for name, part in parts_of(route).items()
    }


def exact(pair: ModelPair, bundle: Path, prompts: Iterable[Sequence[int]], max_new_tokens: int) -> dict[str, bool]:
    """Check by route and prompt that greedy text is Hugging Face's own (`pipelines.measuring.exactness`). A route that serves
    other settings decodes greedily here, too: its drafts and its bookkeeping are the same."""
    decoder = load_decoder(bundle, pair)
    found = greedy_differences(pair, parts_of(decoder), prompts, max_new_tokens)
    return {
        ", ".join(filter(None, (name, f"greedy text {number}, {format_of(pair)}"))): place is None
        for name, places in found.items()
        for number, place in enumerate(places, 1)
    }


@dataclass(frozen=True)
class CalibrationCheck:
    """Expected calibration ``error`` of a bundle's model on documents that were not trained on; ``None``: unknown, or, with an
    ``exemption``, there is none to know."""

    error: float | None
    exemption: str | None = None


def calibration_of(folder: Path) -> CalibrationCheck:
    """The calibration of a bundle; of one with several in it, the worst: an unknown one before any number."""
    bundle = read_bundle(folder)
    nested = {route.get("bundle") for route in bundle.card.get("routes", [])} - {None}
    if nested:
        found = [calibration_of(folder / name) for name in sorted(nested)]
        if any(one.error is None and one.exemption is None for one in found):
            return CalibrationCheck(None)
        known = [one.error for one in found if one.error is not None]
        exemptions = dict.fromkeys(str(one.exemption) for one in found)
        return CalibrationCheck(max(known)) if known else CalibrationCheck(None, "; ".join(exemptions))
    if bundle.card["kind"] == DelayedTree.kind:
        return CalibrationCheck(None, "a delayed-tree selector ranks trees and forecasts no probabilities")
    if not is_learned(bundle):
        return CalibrationCheck(None, "no model to calibrate")
    quality = bundle.card.get("measured_quality", {})
    errors = [quality.get(part, {}).get("ece") for part in ("metrics", "tokens")]
    return CalibrationCheck(max((float(error) for error in errors if error is not None), default=None))


def arms_of(config: TrialConfig, bundles: Mapping[str, Path]) -> list[ArmRow]:
    """Plain decoding, static chains, and ``bundles`` by arm: folders of the challenger and, if any, the champion."""
    rivals = [ArmRow(PLAIN, PLAIN_FAMILY, {"method": PLAIN})]
    rivals += [ArmRow(f"{CHAIN}-{{gamma}}", CHAIN, chain("{gamma}"), each={"gamma": config.gammas})]
    return expanded(rivals, "") + [ArmRow(name, name, bundle=str(folder.resolve())) for name, folder in bundles.items()]
