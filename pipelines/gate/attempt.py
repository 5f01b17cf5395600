"""One look at a bundle, from folders to evidence: what the stage ``trial`` and ``draftwright promote`` share.

Sampling settings at which stage ``measure`` timed the same arms are not timed again. Decodes of earlier looks that lie in the
trial's folder are kept if they are of the same arms, machine, code and parameters.
"""

import argparse
import gc
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipelines.applicability import draftless
from pipelines.gate import trial
from pipelines.gate.evidence.ledger import Replayed, Row, setting_of
from pipelines.gate.plan import TrialConfig, load_plan
from pipelines.gate.trial_evidence import Comparison, Evidence, compared
from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.measuring.arms import ArmBuilder
from pipelines.measuring.bench import Bench, open_bench
from pipelines.measuring.exactness import float32_pair
from pipelines.measuring.foreseen import foreseen
from pipelines.measuring.harness import Harness, apart
from pipelines.measuring.led import RecordedTexts, TextLeader
from pipelines.measuring.measurement_log import Blocks, Rows
from pipelines.measuring.names import CHAIN, CHOICES, DECODES_FILE, PROVENANCE, ROUNDS_FILE, TEST, VALIDATION
from pipelines.measuring.provenance import MEASURED_CODE, source_hash, versions
from pipelines.measuring.tables import read_decodes, read_rounds, write_timed
from pipelines.measuring.tuning.candidates import Measured, Served
from pipelines.outputs import digest, read_json, write_json
from pipelines.places import read_device, read_facts, read_pair
from pipelines.prompt_table import read_prompts
from predictors.bundle import CARD, TENSORS, bundle_hash, read_bundle
from predictors.sampling import SamplingSettings
from runtime import ModelPair

Origin = dict[str, Any]
GROWS = "prompts_sha256"  # of what was measured, what a further look adds to


@dataclass(frozen=True)
class Known:
    """Decodes and rounds of a look, what replay says of them, and where they are from; ``missing``: the sampling settings at
    which prompts are still to be timed."""

    missing: tuple[SamplingSettings, ...] = ()
    decodes: Rows = field(default_factory=Rows)
    rounds: Rows = field(default_factory=Rows)
    origin: Origin = field(default_factory=dict)
    replayed: Replayed | None = None


def attempt(args: argparse.Namespace, predictor: str, bundles: Mapping[str, Path], number: int = 1) -> Evidence:
    """What the ``number``-th look says of the ``challenger`` among ``bundles``, timed beside the ``champion`` there, if any.

    Reads from ``args`` what `open_bench` does, and ``output``, below which decodes and provenance are written. A bundle that does
    not serve the pair is not timed; nor are settings that the table below ``args.measured`` has, if there is such a folder. The
    static chains that tuning found fastest, below ``args.tuning`` if there is such a folder, are rivals besides the trial's own.
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
    look = trial.Look.of(number, args.prompts, config, bounds.slice_documents, texts.first)
    checked = [prompt.tokens for prompt in look.prompts[: config.exactness_prompts]]
    place = read_pair(args.pair_folder)
    pair = float32_pair(place, checked, config.max_new_tokens) or ModelPair.load(**place.models, whole=True)
    problem = trial.problem_of(bundles[CHALLENGER], pair)
    who = {"pair": args.pair, "predictor": predictor, "bundle_sha256": hashes[f"{CHALLENGER}_sha256"]}
    who |= {"champion": champion, "look": number, "problem": problem}
    if problem is not None:
        unknown = Comparison(gains={}, reference=None, settings={}, slices={}, documents=())
        return Evidence(**who, **vars(unknown), exactness={}, calibration_error=None, trained_documents=())
    old = None if champion is None else trial.problem_of(bundles[CHAMPION], pair)
    if old is not None:
        raise ValueError(f"the champion cannot be timed ({old}). Roll it back first (draftwright rollback).")
    exactness = trial.exact(pair, bundles[CHALLENGER], checked, config.max_new_tokens)
    del pair  # the one that is timed is loaded next
    gc.collect()
    bench: Bench | None = None
    known = Known(trial.settings_of(*bundles.values()))
    if number == 1 and champion is None:
        known = _measured(args, config, bundles[CHALLENGER], predictor, look)
    if known.missing:
        grown = {GROWS: digest([prompt.tokens for prompt in look.prompts])}
        bench = open_bench(args, config, {}, {**hashes, **grown})
        known = _timed(bench, args, config, bundles, look, texts, known)
    learned = [prompt for split in ("train", VALIDATION) for prompt in read_prompts(args.prompts, split)]
    trained = {prompt.document for prompt in learned}
    if known.replayed is not None:
        _require_unlearned(known.replayed, known.decodes, trained)
    found = compared(known.decodes, bounds, champion is not None, look.mix, known.replayed)
    calibration = trial.calibration_of(bundles[CHALLENGER])
    evidence = Evidence(
        **who,
        **vars(found),
        exactness=exactness,
        calibration_error=calibration.error,
        exemption=calibration.exemption,
        trained_documents=tuple(sorted(trained)),
        documents_left=look.documents_left,
        origin={**known.origin, "lineage": read_bundle(bundles[CHALLENGER]).card.get("lineage")},
    )
    if bench is not None:
        bench.log.remove()  # no earlier: what fails before is not timed again
    return evidence


def _tuned_lengths(args: argparse.Namespace) -> Iterator[int]:
    """Of the static chains that tuning found fastest on this machine, one for every sampling setting that has any."""
    place = getattr(args, "tuning", None)
    path = None if place is None else place / read_device(args.device)["slug"] / CHOICES
    for choice in read_json(path, kind=list) if path is not None and path.is_file() else []:
        for one in choice["candidates"]:
            decoder = one["served"].get("decoder", {})
            drafted = decoder.get("controller", {}).get("gamma") or decoder.get("drafter", {}).get("gamma")
            if one["name"] == choice["static"] and drafted:
                yield drafted


def _measured(args: argparse.Namespace, config: TrialConfig, bundle: Path, predictor: str, look: trial.Look) -> Known:
    """Test decodes of the measured table below ``args.measured``, at the settings ``bundle`` was captured at.

    A setting is missing unless the table has plain decoding, every static chain of the
    trial and the very decoder that the bundle serves, each on every prompt of the look; decodes of other prompts are left aside.
    Beside settings that are still to be timed, only decodes of the same machine, libraries and code count.
    """
    every = trial.settings_of(bundle)
    if getattr(args, "measured", None) is None:
        return Known(every)
    device = read_device(args.device)
    place = args.measured / device["slug"]
    served = {settings: trial.served_at(bundle, predictor, settings) for settings in every}
    hashes = {name: sha256 for _, of_route in served.values() for name, sha256 in of_route.items()}
    inputs = {"parameters": asdict(config), "pair_sha256": digest(read_facts(args.pair_folder))}
    table = Measured.read(place, inputs, bundle.parent, hashes)
    kinds = [row for row in trial.arms_of(config, {}) if row.family != CHAIN or not draftless(args.pair, args.params)]
    rivals = {row.name: {"decoder": row.decoder} for row in kinds}
    prompts = {prompt.id for prompt in look.prompts}
    found: dict[SamplingSettings, tuple[Served, Rows]] = {}
    for settings, (how, _) in served.items():
        arms: Served = {CHALLENGER: how, **rivals}
        rows = [row for row in table.of(settings, arms, TEST) if row["prompt"] in prompts]
        if {(row["arm"], row["prompt"]) for row in rows} == set(product(arms, prompts)):
            found[settings] = arms, rows
    if not found:
        return Known(every)
    missing = tuple(settings for settings in every if settings not in found)
    origin = json.loads((place / PROVENANCE).read_text())
    here = {"versions": versions(), "device": device, "code_sha256": source_hash(MEASURED_CODE)}
    if missing and not _same(origin, here):
        print(f"{place} was measured by other code, libraries or machine: all settings are timed anew")
        return Known(every)
    family = {CHALLENGER: CHALLENGER} | {row.name: row.family for row in kinds}  # a route may be one of the chains
    decodes = [row | {"family": family[row["arm"]]} for _, rows in found.values() for row in rows]
    source = {"capped": False, "measured": str(place), "look": 1}
    if not missing:
        return Known((), decodes, origin=origin | source, replayed=_replayed(table, found))
    table = replace(table, rows=read_rounds(place / ROUNDS_FILE))
    rounds = [row for settings, (arms, _) in found.items() for row in table.of(settings, arms, TEST)]
    return Known(missing, decodes, [row for row in rounds if row["prompt"] in prompts], source)


def _replayed(table: Measured, found: Mapping[SamplingSettings, tuple[Served, Rows]]) -> Replayed | None:
    """What replay says of the arms of every setting, as stage ``measure`` wrote it, where their decodes were ``found``. Of an arm
    that it covers at some settings alone, as a route to a tree at one of them, it says nothing."""
    texts, timed, partial = list[Row](), list[Row](), set[str]()
    for settings, (arms, decodes) in found.items():
        said, blocks = table.foreseen(arms), {row["block"] for row in decodes}
        if said is None:
            return None
        here = replace(
            said,
            texts=[row for row in said.texts if setting_of(row) == settings.name],
            timed=[row for row in said.timed if row["block"] in blocks],
        )
        texts, timed, prices = [*texts, *here.texts], [*timed, *here.timed], here.prices
        partial |= {name for name in arms if not here.covers(name)}
    texts, timed = ([row for row in rows if row["arm"] not in partial] for rows in (texts, timed))
    return Replayed(texts, timed, prices)


def _timed(
    bench: Bench,
    args: argparse.Namespace,
    config: TrialConfig,
    bundles: Mapping[str, Path],
    look: trial.Look,
    texts: RecordedTexts,
    known: Known,
) -> Known:
    """Decodes of all looks so far, of which only missing ones are timed now: new prompts, and settings that nobody measured."""
    texts.require(bench.pair)
    if look.number > 1:
        known = _earlier(bench, known.missing)
    settings = {one.name for one in known.missing}
    timed = {row["prompt"] for row in known.decodes if setting_of(row) in settings}
    prompts = [prompt for prompt in look.prompts if prompt.id not in timed]
    arms = ArmBuilder(bench.pair, Path(), config.max_new_tokens).build(trial.arms_of(config, bundles))
    leader = TextLeader(bench.pair, config.max_new_tokens, texts)
    with tqdm(desc="trial", unit="decode") as bar:
        blocks = Blocks(bench.log, bar, config.max_minutes)
        harness = Harness(blocks, known.missing, config.seed, config.repeats, leader)
        made = apart(harness.race(arms, prompts))
    capped = blocks.capped or known.origin.get("capped", False)
    origin = bench.origin(args.pair) | known.origin | {"capped": capped, "look": look.number}
    decodes, rounds = (before + now for before, now in zip((known.decodes, known.rounds), made, strict=True))
    write_timed(bench.folder, args.pair, decodes, rounds)
    write_json(bench.folder / PROVENANCE, origin)
    decoders = {name: arm.decoder for name, arm in arms.items() if arm.decoder is not None}
    replayed = foreseen(bench, args.latency, decoders, texts, look.prompts, decodes, rounds)
    return Known((), decodes, rounds, origin, replayed)


def _earlier(bench: Bench, settings: tuple[SamplingSettings, ...]) -> Known:
    """Decodes and rounds of earlier looks at ``settings``, none if they are not comparable."""
    place = bench.folder / PROVENANCE
    if not place.is_file():
        return Known(settings)
    origin = json.loads(place.read_text())
    same = {name: value for name, value in bench.inputs.items() if name != GROWS}
    same |= {"versions": versions(), "device": bench.device}
    hashed, here = ({name for name in some if name.endswith("_sha256")} for some in (origin, bench.inputs))
    if origin.get("capped") or hashed != here or not _same(origin, same):  # hashed: another champion, or none
        return Known(settings)
    decodes, rounds = read_decodes(bench.folder / DECODES_FILE), read_rounds(bench.folder / ROUNDS_FILE)
    return Known(settings, decodes, rounds)


def _same(origin: Origin, here: Origin) -> bool:
    """Whether what is ``here`` was the same there."""
    return digest({name: origin.get(name) for name in here}) == digest(here)


def _require_unlearned(replayed: Replayed, decodes: Rows, trained: set[str]) -> None:
    """`ValueError` if a replayed text is of a document that was trained on. Those of timed documents are the gate's to judge."""
    timed = {row["document"] for row in decodes}
    learned = sorted({row["document"] for row in replayed.texts} & trained - timed)
    if learned:
        raise ValueError(
            f"recorded texts are of documents that were trained on ({', '.join(learned[:3])}): what replay says of them is no "
            "evidence. Collect the texts of these prompts (dvc repro traces)."
        )
