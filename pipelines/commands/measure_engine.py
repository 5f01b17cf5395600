"""Measure an engine in an environment of its own by batch size at temperature 0, and choose how many tokens it drafts there.

    block    requests that begin together, as many as the batch size: Σ tokens / Σ seconds is an arm's speed
    choice   by method and batch size: of plain decoding and the method's arms the fastest on validation prompts
    gain     of the choice over plain decoding and over the engine's default of the method, on test prompts

Gains and verdicts are the gate's. Requests of a block share its seconds, and blocks of a turn their prompts, so that a turn takes
the place of a document: it is what the jackknife leaves out. Every arm is a process that is started once, and all take turns by
blocks. After ``--minutes``, starts among them, or an interruption, what is done counts. Writes decodes.parquet, findings.json,
with tokens/s that recorded texts predict, and provenance.json. `make peers` makes the environment.

    draftwright measure --engine vllm --pair smollm2 --minutes 20
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from pipelines.engines.engine import VLLM, Block, race, vllm
from pipelines.engines.predicted import Arms, StepSeconds, predictions, where
from pipelines.gate.evidence import GateEvidence, compared
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import CHALLENGER, judged, lines
from pipelines.measuring import names
from pipelines.measuring.gain import TimedDecodes, TooFewDocumentsError
from pipelines.measuring.names import TEST, VALIDATION
from pipelines.measuring.provenance import provenance
from pipelines.measuring.recorded import RecordedTexts
from pipelines.measuring.tables import Rows
from pipelines.outputs import digest, replacing, write_json
from pipelines.parameters import PARAMETERS, load_parameters, read_machine
from pipelines.places import add_place_arguments, fill_in, read_device, read_pair
from pipelines.prompt_table import Prompt, read_prompts
from pipelines.report.section import Unit, shown
from pipelines.terminal import count
from runtime.eagle3.checkpoint import drafter_config

PLACES = {"pair_folder": "pair", "prompts": "prompts", "texts": "traces/texts", "output": "engines/vllm"}
PLAIN = "plain"
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}  # vLLM's page on n-grams has these
EAGLE = 2  # tokens in the example of vLLM's page on EAGLE
NEW_TOKENS, CACHE = 48, 0.5  # of a request at most; GiB of keys and values of a process
EQUAL = 0.95  # share of greedy texts that have to be plain decoding's: near-ties round differently


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("engine", choices=["vllm"])
    add("--pair", required=True, help="name of a pair with recorded texts and, for EAGLE-3, a trained drafter")
    add("--params", type=Path, default=PARAMETERS, help="parameter file (default: %(default)s)")
    add_place_arguments(parser, PLACES)
    add("--environment", type=Path, default=Path(".venv-peers"), help="of the engine (default: %(default)s)")
    add("--minutes", type=float, default=20.0, help="for everything (default: %(default)g)")
    add("--batches", type=count, nargs="+", default=[1, 2, 4, 8], help="requests at once (default: 1 2 4 8)")
    add("--gammas", type=count, nargs="+", default=[1, 2, 3, 4, 5], help="tokens to draft (default: 1 2 3 4 5)")
    add("--default", type=count, help=f"tokens that vLLM drafts unasked (default: the drafter's own, else {EAGLE})")


def run(args: argparse.Namespace) -> None:
    fill_in(args, PLACES)
    place, device = read_pair(args.pair_folder), read_device(args.device)
    recorded, bounds = (
        RecordedTexts(args.texts, NEW_TOKENS),
        load_parameters(Bounds, args.pair, "promotion", args.params),
    )
    threads, folder = read_machine(args.pair, args.params).threads, args.output / device["slug"]
    prompts = {split: recorded.first(read_prompts(args.prompts, split)) for split in (VALIDATION, TEST)}
    texts = {one.prompt_id: one for split in prompts for one in recorded.of(split) if one.settings.greedy}
    arms, defaults = arms_of(place.draft, args.gammas, args.default)
    options = {"target": place.target, "dtype": place.dtype, "threads": threads, "eager": False}
    options |= {"batch": max(args.batches), "cache": CACHE}
    engines = [vllm(name, args.environment, speculative=how, **options) for name, how in arms.items()]
    planned = turns(prompts, args.batches, {name: one.length for name, one in texts.items()})
    rows, failed = race(engines, planned, threads, args.minutes)
    blocks = decoded(rows, failed)
    if not batches_of(where(blocks, arm=PLAIN)):
        why = failed.get(f"{VLLM}: {PLAIN}", f"no block of validation and of test prompts in {args.minutes:g} minutes")
        raise ValueError(f"{VLLM}: {why}. Make its environment (make peers), or raise --minutes.")
    tokens = {one.id: one.tokens for some in prompts.values() for one in some}
    found: dict[str, Any] = {"failed": failed, "counters": {one.arms[0]: one.counters for one in engines}}
    found["speeds"], found["choices"] = list(speeds(blocks, arms)), list(choices(blocks, arms, defaults))
    found["predicted"] = list(predictions(blocks, arms, tokens, texts))
    plain = StepSeconds(where(blocks, arm=PLAIN), tokens)
    found["step_seconds"] = {"rows": plain.running.tolist(), "seconds": [float(one) for one in plain.mean]}
    off = [abs(one["predicted_over_measured"] - 1) for one in found["predicted"]]
    found["median_error"] = float(np.median(off)) if off else None
    origin = provenance(device) | {"pair": args.pair, "options": options, "minutes": args.minutes}
    origin |= {"models": ["target", *["draft"] * bool(place.draft)], "texts_sha256": recorded.sha256}
    trained = {one.document for split in ("drafter", "train", VALIDATION) for one in read_prompts(args.prompts, split)}
    who = {"pair": args.pair, "origin": origin, "trained_documents": tuple(sorted(trained))}
    by_method = [[one for one in found["choices"] if one["method"] == method] for method in defaults]
    found["verdicts"] = [verdict(blocks, made, bounds, **who) for made in by_method if made]
    with replacing(folder / names.DECODES_FILE) as path:
        pd.DataFrame(rows).to_parquet(path)
    write_json(folder / names.FINDINGS, found)
    write_json(folder / names.PROVENANCE, origin | {"engine": engines[0].facts})
    print(folder, *page(found), sep="\n")


def arms_of(draft: str | None, gammas: Sequence[int], default: int | None) -> tuple[Arms, dict[str, str]]:
    """What vLLM drafts with, by arm, and its default by method."""
    arms: dict[str, Any] = {PLAIN: None, "n-gram": NGRAM}
    defaults = {"ngram": "n-gram"}
    if draft and (config := drafter_config(draft)) is not None:
        proposals = config.get("speculators_config", {}).get("proposal_methods") or [{}]
        default = default or proposals[0].get("speculative_tokens") or EAGLE
        for length in sorted({*gammas, default}, key=lambda length: (length != default, length)):
            arms[f"EAGLE-3 of {length}"] = {"method": "eagle3", "model": draft, "num_speculative_tokens": length}
        defaults["eagle3"] = f"EAGLE-3 of {default}"
    return arms, defaults


def turns(prompts: Mapping[str, Sequence[Prompt]], batches: Sequence[int], lengths: Mapping[str, int]) -> list[Block]:
    """Blocks of every batch size, shuffled within turns of as many prompts as the largest: of validation, test and test prompts
    in turn. ``lengths``: new tokens by prompt, where its text is recorded. `ValueError` if there are too few prompts."""
    size, blocks = max(batches), []
    first, rest = ([some[at:][:size] for at in range(0, len(some) - size + 1, size)] for some in prompts.values())
    mixed = [turn for three in zip(first, rest[::2], rest[1::2], strict=False) for turn in three]
    for number, some in enumerate(mixed):
        starts = [(batch, at) for batch in batches for at in range(0, max(batch, size // 4), batch)]
        for batch, at in Random(number).sample(starts, len(starts)):
            new_tokens = [lengths.get(one.id, NEW_TOKENS) for one in some[at:][:batch]]
            blocks.append(Block(some[at:][:batch], new_tokens, batch, number))
    if not blocks:
        needed = f"{size} validation and {2 * size} test prompts"
        raise ValueError(f"batches of {size} take {needed}. Draw more, or lower --batches.")
    return blocks


def decoded(rows: Rows, failed: Mapping[str, str]) -> Rows:
    """Blocks that all arms decoded which did not fail, each as one decode, with the rows of its ``requests``."""
    made: dict[tuple[str, int], dict[str, Any]] = {}
    for row in (row for row in rows if row["arm"] not in failed):
        place = {"setting": f"batch {row['batch']}", "document": f"turn {row['turn']}", "temperature": 0.0}
        place |= {"slice": "all", "arm": row["arm"].removeprefix(f"{VLLM}: ")}
        place |= {"tokens": 0, "seconds": 0.0, "requests": []}
        block = made.setdefault((row["arm"], row["block"]), row | place)
        block["requests"].append(row)
        block |= {"tokens": block["tokens"] + len(row["tokens"]), "seconds": max(block["seconds"], row["seconds"])}
    arms, counts = {arm for arm, _ in made}, Counter(number for _, number in made)
    return [block for (_, number), block in made.items() if counts[number] == len(arms)]


def speed(blocks: Rows, **only: Any) -> float:
    """Tokens per second."""
    some = where(blocks, **only)
    return float(sum(one["tokens"] for one in some) / sum(one["seconds"] for one in some))


def speeds(blocks: Rows, arms: Arms) -> Iterator[dict[str, Any]]:
    """Speeds of all arms on test prompts."""
    for batch, arm in ((batch, arm) for batch in batches_of(blocks) for arm in arms if where(blocks, arm=arm)):
        found = {"arm": arm, "batch": batch, "tokens_per_second": speed(blocks, split=TEST, batch=batch, arm=arm)}
        yield found | {"gain_over_plain": gain(blocks, arm, PLAIN, batch)}


def batches_of(blocks: Rows) -> list[int]:
    """Batch sizes of blocks of both splits."""
    validation, test = ({one["batch"] for one in where(blocks, split=split)} for split in (VALIDATION, TEST))
    return sorted(validation & test)


def gain(blocks: Rows, arm: str, rival: str, batch: int) -> dict[str, float | None]:
    """The gain over a rival on test prompts, with its 95 % interval; without numbers where both had fewer than two turns."""
    try:
        return TimedDecodes.of(where(blocks, split=TEST)).gain(arm, rival, [f"batch {batch}"]).interval()
    except TooFewDocumentsError:
        return {"value": None, "low": None, "high": None}


def choices(blocks: Rows, arms: Arms, defaults: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Choose by method and batch size; ``gain_over``: over every arm of the method."""
    known = {one["arm"] for one in blocks}
    for method, default in defaults.items():
        own = [arm for arm, how in arms.items() if arm in known and (how is None or how["method"] == method)]
        for batch in batches_of(blocks) if default in own else ():
            sweep = {arm: speed(blocks, split=VALIDATION, batch=batch, arm=arm) for arm in own}
            best = max(own, key=sweep.__getitem__)
            over = {arm: gain(blocks, best, arm, batch) for arm in own}
            found = {"batch": batch, "method": method, "arm": best, "k": drafted(arms[best]), "default": default}
            found |= {"speculative": arms[best], "default_k": drafted(arms[default]), "tokens_per_second": sweep}
            yield found | {"gain_over": over, "gain_over_plain": over[PLAIN], "gain_over_default": over[default]}


def drafted(speculative: Mapping[str, Any] | None) -> int:
    """Number of tokens that an arm drafts."""
    return int(speculative["num_speculative_tokens"]) if speculative else 0


def verdict(blocks: Rows, made: Sequence[Mapping[str, Any]], bounds: Bounds, **who: Any) -> dict[str, Any]:
    """The gate's record on the choices that were ``made`` of a method: over plain decoding and over the method's default, over
    the latter by batch size, too."""
    rivals = {PLAIN: names.PLAIN, made[0]["default"]: f"{names.CHAIN}-{made[0]['default_k']}"}
    arms = [(one["batch"], arm, name) for one in made for arm, name in (*rivals.items(), (one["arm"], CHALLENGER))]
    test = where(blocks, split=TEST)
    timed = [row | {"arm": name} for batch, arm, name in arms for row in where(test, batch=batch, arm=arm)]
    found = vars(compared(TimedDecodes.of(timed), replace(bounds, slice_documents=2)))
    texts = {(block["arm"], block["batch"], row["prompt"]): row for block in timed for row in block["requests"]}
    plain = {tuple(key): row["tokens"] for (arm, *key), row in texts.items() if arm == names.PLAIN}
    same = [row["tokens"] == plain[tuple(key)] for (arm, *key), row in texts.items() if arm == CHALLENGER]
    found["exactness"] = {f"{sum(same)} of {len(same)} greedy texts equal": sum(same) >= EQUAL * len(same)}
    found["documents"] = tuple(sorted({row["document"] for row in texts.values()}))
    found |= {"calibration_error": None, "exemption": "numbers of tokens by batch size: nothing is calibrated"}
    found |= {"predictor": f"{VLLM} {made[0]['method']}", "bundle_sha256": digest(made)}
    return judged(GateEvidence(**found, **who, champion=None, problem=None), bounds)


def page(found: Mapping[str, Any]) -> Iterator[str]:
    """Speeds, choices, verdicts, and how far off predictions are."""
    table: dict[str, dict[str, str]] = {}
    for one in found["speeds"]:
        cell = f"{one['tokens_per_second']:.0f}/s, {shown(one['gain_over_plain'], Unit.GAIN)}"
        table.setdefault(f"batch {one['batch']}", {})[one["arm"]] = cell
    yield pd.DataFrame(table).to_string()
    for one in found["choices"]:
        over = [f"{shown(one[f'gain_over_{rival}'], Unit.GAIN)} over {rival}" for rival in (PLAIN, "default")]
        yield f"{one['method']}, batch {one['batch']}: {one['arm']}, {', '.join(over)} ({one['default']})"
    yield from (line for one in found["verdicts"] for line in lines(one))
    if found["predicted"]:
        yield f"predicted tokens/s: {found['median_error']:.1%} off in the median of {len(found['predicted'])}"
    yield from (f"failed: {arm}: {why}" for arm, why in found["failed"].items())
