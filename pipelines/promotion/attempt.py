"""One look at a bundle, from folders to evidence: what the stage ``trial`` and ``draftwright promote`` share.

Decodes of earlier looks that lie in the trial's folder are kept if they are of the same arms, machine, code and parameters.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.device_file import read_device
from pipelines.measuring.bench import Bench, open_bench
from pipelines.measuring.exactness import load_float32
from pipelines.measuring.led import TextLeader
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.measuring.tables import read_decodes, read_rounds, write_decodes, write_rounds
from pipelines.outputs import write_json
from pipelines.pair_folder import read_facts, read_pair
from pipelines.parameters import load_parameters
from pipelines.promotion.bounds import Bounds
from pipelines.promotion.candidate import exact, problem_of, settings_of
from pipelines.promotion.evidence import Evidence
from pipelines.promotion.names import CHALLENGER, CHAMPION, DECODES, ROUNDS
from pipelines.promotion.timing import BlockTiming
from pipelines.promotion.trial import Look, TrialConfig, decoders_of, evidence_of, learned_documents, mix_of, unservable
from pipelines.prompt_table import read_prompts
from predictors.bundle import CARD, TENSORS, bundle_hash
from runtime import ModelPair

Origin = dict[str, Any]
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
    place = read_pair(args.pair_folder)
    precise = load_float32(place.target, place.draft, place.tokenizer)
    problem = problem_of(bundles[CHALLENGER], precise)
    if problem is not None:
        return unservable(who, champion, problem, number)
    old = None if champion is None else problem_of(bundles[CHAMPION], precise)
    if old is not None:
        raise ValueError(f"the champion cannot be timed ({old}). Roll it back first (draftwright rollback).")
    config = load_parameters(TrialConfig, args.pair, "trial", args.params)
    bounds = load_parameters(Bounds, args.pair, "promotion", args.params)
    look = Look.of(number, args.prompts, config, bounds.slice_documents)
    arm = predictor
    known = _measured(args, bundles[CHALLENGER], predictor) if number == 1 and champion is None else None
    if known is None:
        arm, known = CHALLENGER, _timed(args, config, bundles, look, hashes)
    decodes, origin = known
    exactness = _exactness(precise, bundles[CHALLENGER], look, config)
    trained = _trained(args, look)
    return evidence_of(
        who,
        decodes,
        look,
        bounds,
        exactness,
        trained,
        origin,
        champion,
        arm=arm,
        mix=mix_of(read_prompts(args.prompts, TEST)),
    )


def _require(bundles: Mapping[str, Path]) -> None:
    for folder in bundles.values():
        missing = [name for name in (CARD, TENSORS) if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no bundle, it lacks {' and '.join(missing)}. Export it first (dvc repro).")


def _measured(args: argparse.Namespace, bundle: Path, predictor: str) -> tuple[Rows, Origin] | None:
    """Test decodes of the measured table below ``args.measured``, at the settings that ``bundle`` was captured at, with their
    origin; if this very bundle is an arm there."""
    folder = getattr(args, "measured", None)
    place = None if folder is None else folder / read_device(args.device)["slug"]
    if place is None or not (place / PROVENANCE).is_file():
        return None
    origin = json.loads((place / PROVENANCE).read_text())
    if origin.get(f"{predictor}_bundle_sha256") != bundle_hash(bundle):
        return None
    captured = [asdict(settings) for settings in settings_of(bundle)]
    rows = [row for row in read_decodes(place / DECODES) if row["split"] == TEST]
    rows = [row for row in rows if {name: row[name] for name in ("temperature", "top_k", "top_p")} in captured]
    return rows, origin | {"measured": str(place), "look": 1}


def _timed(
    args: argparse.Namespace, config: TrialConfig, bundles: Mapping[str, Path], look: Look, hashes: dict[str, str]
) -> tuple[Rows, Origin]:
    """Decodes of all looks so far, of which only new prompts are timed now, and their origin."""
    prompts_sha256 = hashlib.sha256(json.dumps([prompt.tokens for prompt in look.prompts]).encode()).hexdigest()
    bench = open_bench(args, config, {}, **hashes, **{GROWS: prompts_sha256})
    earlier = _earlier(bench) if look.number > 1 else (Rows(), Rows())
    known = {row["prompt"] for row in earlier[0]}
    prompts = [prompt for prompt in look.prompts if prompt.id not in known]
    measure = BlockTiming(
        settings_of(*bundles.values()),
        config.max_new_tokens,
        bench.log,
        config.repeats,
        config.seed,
        config.max_minutes,
        TextLeader(bench.pair, config.max_new_tokens),
    )
    made = measure(decoders_of(bench.pair, config, bundles), prompts)
    origin = bench.origin(args.pair) | {"capped": measure.capped, "look": look.number}
    tables = [before + now for before, now in zip(earlier, made, strict=True)]
    write_decodes(bench.folder / DECODES, [{"pair": args.pair, **row} for row in tables[0]])
    write_rounds(bench.folder / ROUNDS, tables[1])
    write_json(bench.folder / PROVENANCE, origin)
    bench.log.remove()
    return tables[0], origin


def _earlier(bench: Bench) -> tuple[Rows, Rows]:
    """Decodes and rounds of earlier looks, none if they are not comparable."""
    place = bench.folder / PROVENANCE
    if not place.is_file():
        return Rows(), Rows()
    origin = json.loads(place.read_text())
    same = {name: value for name, value in bench.inputs.items() if name != GROWS}
    if origin.get("capped") or any(_plain(origin.get(name)) != _plain(value) for name, value in same.items()):
        return Rows(), Rows()
    return read_decodes(bench.folder / DECODES), read_rounds(bench.folder / ROUNDS)


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value))


def _exactness(pair: ModelPair, bundle: Path, look: Look, config: TrialConfig) -> dict[str, bool]:
    prompts = [prompt.tokens for prompt in look.prompts[: config.exactness_prompts]]
    return exact(pair, bundle, prompts, config.max_new_tokens)


def _trained(args: argparse.Namespace, look: Look) -> set[str]:
    known = [prompt for split in ("train", VALIDATION) for prompt in read_prompts(args.prompts, split)]
    return learned_documents(known, look.prompts, read_facts(args.pair_folder))
