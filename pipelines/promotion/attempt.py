"""One look at a bundle, from folders to evidence: what the stage ``trial`` and ``draftwright promote`` share.

Decodes of earlier looks that lie in the trial's folder are kept if they are of the same arms, machine, code and parameters.
"""

import argparse
import gc
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipelines.applicability import draftless
from pipelines.device_file import read_device
from pipelines.evidence.ledger import Replayed
from pipelines.measuring.arm_builder import ArmBuilder
from pipelines.measuring.bench import Bench, open_bench
from pipelines.measuring.exactness import float32_pair
from pipelines.measuring.foreseen import foreseen
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.led import TextLeader
from pipelines.measuring.measurement_log import Blocks, Rows
from pipelines.measuring.names import CHAIN, DECODES_FILE, FINDINGS, PROVENANCE, ROUNDS_FILE, TEST, VALIDATION
from pipelines.measuring.provenance import versions
from pipelines.measuring.recorded import RecordedTexts
from pipelines.measuring.tables import read_decodes, read_rounds, write_timed
from pipelines.measuring.tuning.candidates import Candidate
from pipelines.measuring.tuning.measured import Measured
from pipelines.outputs import digest, write_json
from pipelines.pair_folder import read_facts, read_pair
from pipelines.promotion.candidate import exact, problem_of, served_at, settings_of
from pipelines.promotion.evidence import Evidence
from pipelines.promotion.names import CHALLENGER, CHAMPION
from pipelines.promotion.plan import TrialConfig, load_plan
from pipelines.promotion.trial import Look, arms_of, evidence_of, learned_documents, unservable
from pipelines.prompt_table import read_prompts
from predictors.bundle import CARD, TENSORS, bundle_hash
from runtime import ModelPair
from runtime.serving_record import read_serving

Origin = dict[str, Any]
Known = tuple[Rows, Replayed | None, Origin]  # decodes, what replay says of them, and where they are from
GROWS = "prompts_sha256"  # of what was measured, what a further look adds to


def attempt(args: argparse.Namespace, predictor: str, bundles: Mapping[str, Path], number: int = 1) -> Evidence:
    """What the ``number``-th look says of the ``challenger`` among ``bundles``, timed beside the ``champion`` there, if any.

    Reads from ``args`` what `open_bench` does, and ``output``, below which decodes and provenance are written. A bundle that does
    not serve the pair is not timed; nor is one that the table below ``args.measured`` has, if there is such a folder.
    """
    _require(bundles)
    who = args.pair, predictor, bundles[CHALLENGER]
    hashes = {f"{name}_sha256": bundle_hash(folder) for name, folder in bundles.items()}
    champion = hashes.get(f"{CHAMPION}_sha256")
    config, bounds = load_plan(args.pair, args.params)
    texts = RecordedTexts(getattr(args, "texts", None), config.max_new_tokens)
    look = Look.of(number, args.prompts, config, bounds.slice_documents, texts.first)
    checked = [prompt.tokens for prompt in look.prompts[: config.exactness_prompts]]
    place, record = read_pair(args.pair_folder), args.latency / f"{read_device(args.device)['slug']}.json"
    serving = read_serving(record)
    pair = float32_pair(place, checked, config.max_new_tokens, serving) or ModelPair.load(**place.models, record=record)
    problem = problem_of(bundles[CHALLENGER], pair)
    if problem is not None:
        return unservable(who, champion, problem, number)
    old = None if champion is None else problem_of(bundles[CHAMPION], pair)
    if old is not None:
        raise ValueError(f"the champion cannot be timed ({old}). Roll it back first (draftwright rollback).")
    exactness = exact(pair, bundles[CHALLENGER], checked, config.max_new_tokens)
    del pair  # the one that is timed is loaded next
    gc.collect()
    arm = predictor
    bench: Bench | None = None
    known = _measured(args, config, bundles[CHALLENGER], predictor, look) if number == 1 and champion is None else None
    if known is None:
        grown = {GROWS: digest([prompt.tokens for prompt in look.prompts])}
        arm, bench = CHALLENGER, open_bench(args, config, {}, {**hashes, **grown})
        known = _timed(bench, args, config, bundles, look, texts)
    decodes, replayed, origin = known
    trained = _trained(args, look)
    if replayed is not None:
        _require_unlearned(replayed, decodes, trained)
    evidence = evidence_of(who, decodes, look, bounds, exactness, trained, origin, champion, arm=arm, replayed=replayed)
    if bench is not None:
        bench.log.remove()  # no earlier: what fails before is not timed again
    return evidence


def _require(bundles: Mapping[str, Path]) -> None:
    for folder in bundles.values():
        missing = [name for name in (CARD, TENSORS) if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no bundle, it lacks {' and '.join(missing)}. Export it first (dvc repro).")


def _measured(args: argparse.Namespace, config: TrialConfig, bundle: Path, predictor: str, look: Look) -> Known | None:
    """Test decodes of the measured table below ``args.measured``, at the settings ``bundle`` was captured at.

    ``None`` unless the arms that it times on every prompt are plain decoding, every static chain of the trial and at each setting
    the very decoder that the bundle serves there, each on every prompt of the look; decodes of other prompts are left aside.
    """
    if getattr(args, "measured", None) is None:
        return None
    slug = read_device(args.device)["slug"]
    place = args.measured / slug
    inputs = {"parameters": asdict(config), "pair_sha256": digest(read_facts(args.pair_folder))}
    inputs["serving"] = read_serving(args.latency / f"{slug}.json").to_record()
    served = {settings: served_at(bundle, predictor, settings) for settings in settings_of(bundle)}
    hashes = {name: sha256 for _, of_route in served.values() for name, sha256 in of_route.items()}
    known = Measured.read(place, inputs, bundle.parent, hashes)
    always = tuple(row for row in known.arms if row.always)
    known = replace(known, arms=always)  # decodes and what replay says are of the same arms
    against = [row for row in arms_of(config, {}) if row.family != CHAIN or not draftless(args.pair, args.params)]
    rivals = [Candidate(row.name, row.family, {"decoder": row.decoder}, 0.0) for row in against]
    rows, asked, replayed = Rows(), {prompt.id for prompt in look.prompts}, known.foreseen(rivals)
    for settings, (how, _) in served.items():
        own = Candidate(predictor, predictor, how, 0.0)
        ours, theirs = (known.of(settings, some, TEST) for some in ([own], rivals))
        ours = [row | {"family": predictor} for row in ours]  # a route may be one of the chains
        some = [row for row in (*ours, *theirs) if row["prompt"] in asked]
        if any({row["prompt"] for row in some if row["arm"] == one.name} != asked for one in (own, *rivals)):
            return None
        rows += some
        said = known.foreseen([own])
        replayed = None if replayed is None or said is None else replayed.joined(said, settings.name, ours)
    capped = json.loads((place / FINDINGS).read_text())["capped"]
    origin = json.loads((place / PROVENANCE).read_text())
    return rows, replayed, origin | {"capped": capped, "measured": str(place), "look": 1}


def _timed(
    bench: Bench,
    args: argparse.Namespace,
    config: TrialConfig,
    bundles: Mapping[str, Path],
    look: Look,
    texts: RecordedTexts,
) -> Known:
    """Decodes of all looks so far, of which only new prompts are timed now."""
    texts.require(bench.pair)
    earlier = _earlier(bench) if look.number > 1 else (Rows(), Rows())
    known = {row["prompt"] for row in earlier[0]}
    prompts = [prompt for prompt in look.prompts if prompt.id not in known]
    arms = ArmBuilder(bench.pair, Path(), config.max_new_tokens).build(arms_of(config, bundles))
    try:
        leader = TextLeader(bench.pair, config.max_new_tokens, texts)
        with tqdm(desc="trial", unit="decode") as bar:
            blocks = Blocks(bench.log, bar, config.max_minutes)
            harness = Harness(blocks, settings_of(*bundles.values()), config.seed, config.repeats, leader)
            made = apart(harness.race(arms, prompts))
        origin = bench.origin(args.pair) | {"capped": blocks.capped, "look": look.number}
        decodes, rounds = (before + now for before, now in zip(earlier, made, strict=True))
        write_timed(bench.folder, args.pair, decodes, rounds)
        write_json(bench.folder / PROVENANCE, origin)
        decoders = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
        replayed = foreseen(bench, args.latency, decoders, texts, look.prompts, decodes, rounds)
    finally:
        for arm in arms.values():
            if arm.decoder is not None:
                arm.decoder.close()
    return decodes, replayed, origin


def _earlier(bench: Bench) -> tuple[Rows, Rows]:
    """Decodes and rounds of earlier looks, none if they are not comparable."""
    place = bench.folder / PROVENANCE
    if not place.is_file():
        return Rows(), Rows()
    origin = json.loads(place.read_text())
    same = {name: value for name, value in bench.inputs.items() if name != GROWS}
    same |= {"versions": versions(), "device": bench.device}
    others = _hashed(origin) != _hashed(bench.inputs)  # another champion, or none
    if origin.get("capped") or others or digest({name: origin.get(name) for name in same}) != digest(same):
        return Rows(), Rows()
    return read_decodes(bench.folder / DECODES_FILE), read_rounds(bench.folder / ROUNDS_FILE)


def _hashed(origin: Mapping[str, Any]) -> set[str]:
    """Of what there is a hash."""
    return {name for name in origin if name.endswith("_sha256")}


def _require_unlearned(replayed: Replayed, decodes: Rows, trained: set[str]) -> None:
    """`ValueError` if a replayed text is of a document that was trained on. Those of timed documents are the gate's to judge."""
    timed = {row["document"] for row in decodes}
    learned = sorted({row["document"] for row in replayed.texts} & trained - timed)
    if learned:
        raise ValueError(
            f"recorded texts are of documents that were trained on ({', '.join(learned[:3])}): what replay says of them is no "
            "evidence. Collect the texts of these prompts (dvc repro traces)."
        )


def _trained(args: argparse.Namespace, look: Look) -> set[str]:
    known = [prompt for split in ("train", VALIDATION) for prompt in read_prompts(args.prompts, split)]
    return learned_documents(known, look.prompts, read_facts(args.pair_folder))
