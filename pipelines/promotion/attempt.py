"""One look at a bundle, from folders to evidence: what the stage ``trial`` and ``draftwright promote`` share.

Decodes of earlier looks that lie in the trial's folder are kept if they are of the same arms, machine, code and parameters.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.measuring.bench import Bench, open_bench
from pipelines.measuring.exactness import load_float32
from pipelines.measuring.measurement_log import Rows
from pipelines.measuring.names import PROVENANCE, TEST, VALIDATION
from pipelines.outputs import replacing, write_json
from pipelines.pair_folder import read_facts, read_pair
from pipelines.parameters import load_parameters
from pipelines.promotion.bounds import Bounds
from pipelines.promotion.candidate import exact, problem_of, settings_of
from pipelines.promotion.evidence import Evidence
from pipelines.promotion.names import CHALLENGER, CHAMPION, DECODES, RESERVE, ROUNDS
from pipelines.promotion.timing import BlockTiming
from pipelines.promotion.trial import Look, TrialConfig, decoders_of, evidence_of, learned_documents, unservable
from pipelines.prompt_table import read_prompts
from predictors.bundle import CARD, TENSORS, bundle_hash
from runtime import ModelPair

MAY_GROW = "prompts_sha256"  # of what was measured, what a further look adds to


def attempt(args: argparse.Namespace, predictor: str, bundles: Mapping[str, Path], number: int = 1) -> Evidence:
    """What the ``number``-th look says of the ``challenger`` among ``bundles``, timed beside the ``champion`` there, if any.

    Reads from ``args`` what `open_bench` does, and ``output``, below which decodes and provenance are written. A bundle that does
    not serve the pair is not timed.
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
    look = Look.of(number, args.prompts, config)
    counts = {TEST: config.test_prompts} | ({RESERVE: (number - 1) * config.reserve_prompts} if number > 1 else {})
    bench = open_bench(args, config, counts, **hashes)
    decodes, capped = _timed(bench, config, bundles, look, args.pair)
    exactness = _exactness(precise, bundles[CHALLENGER], look, config)
    trained = _trained(args, look)
    origin = bench.origin(args.pair) | {"capped": capped, "look": number}
    bench.log.remove()
    return evidence_of(
        who, decodes, look, bounds, exactness, trained, origin, champion, mix=_mix(args.prompts)
    )


def _require(bundles: Mapping[str, Path]) -> None:
    for folder in bundles.values():
        missing = [name for name in (CARD, TENSORS) if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{folder} is no bundle, it lacks {' and '.join(missing)}. Export it first (dvc repro).")


def _timed(
    bench: Bench, config: TrialConfig, bundles: Mapping[str, Path], look: Look, pair: str
) -> tuple[Rows, bool]:
    """Decodes of all looks so far, of which only new prompts are timed now; and whether time ran out."""
    earlier = _earlier(bench) if look.number > 1 else (Rows(), Rows())
    known = {row["prompt"] for row in earlier[0]}
    prompts = [prompt for prompt in look.prompts if prompt.id not in known]
    settings = settings_of(*bundles.values())
    options = {"repeats": config.repeats, "seed": config.seed, "max_minutes": config.max_minutes}
    measure = BlockTiming(settings, config.max_new_tokens, bench.log, **options)
    made = measure(decoders_of(bench.pair, config, bundles), prompts)
    decodes, rounds = (before + now for before, now in zip(earlier, made, strict=True))
    for name, rows in ((DECODES, decodes), (ROUNDS, rounds)):
        with replacing(bench.folder / name) as partial:
            pq.write_table(pa.Table.from_pylist(rows), partial)
    write_json(bench.folder / PROVENANCE, bench.origin(pair) | {"capped": measure.capped, "look": look.number})
    return decodes, measure.capped


def _earlier(bench: Bench) -> tuple[Rows, Rows]:
    """Decodes and rounds of earlier looks, none if they are not comparable."""
    place = bench.folder / PROVENANCE
    if not place.is_file():
        return Rows(), Rows()
    origin = json.loads(place.read_text())
    same = {name: value for name, value in bench.inputs.items() if name != MAY_GROW}
    if origin.get("capped") or any(_plain(origin.get(name)) != _plain(value) for name, value in same.items()):
        return Rows(), Rows()
    decodes, rounds = (pq.read_table(bench.folder / name).to_pylist() for name in (DECODES, ROUNDS))
    return decodes, rounds


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value))


def _exactness(pair: ModelPair, bundle: Path, look: Look, config: TrialConfig) -> dict[str, bool]:
    prompts = [prompt.tokens for prompt in look.prompts[: config.exactness_prompts]]
    return exact(pair, bundle, prompts, config.max_new_tokens)


def _trained(args: argparse.Namespace, look: Look) -> set[str]:
    known = [prompt for split in ("train", VALIDATION) for prompt in read_prompts(args.prompts, split)]
    return learned_documents(known, look.prompts, read_facts(args.pair_folder))


def _mix(prompts: Path) -> dict[str, float]:
    """Documents of the test share by slice: what a slice weighs."""
    slices = {prompt.document: prompt.slice for prompt in read_prompts(prompts, TEST)}
    return {name: float(count) for name, count in Counter(slices.values()).items()}
