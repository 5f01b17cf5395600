"""Compare this runtime with other engines on one machine: `make peers`, which makes their environment, or

    python -m pipelines.peers --pair data/smollm2/pair --prompts data/smollm2/prompts --output docs/peers

All decode the same prompts at temperature 0, as many new tokens each, interleaved (`pipelines.engines.engine`):

    after the prefill    Σ (tokens - those of the first pass) / Σ (seconds - seconds to the first token)
    whole request        Σ tokens / Σ seconds

Intervals are 95 %, by bootstrap over documents, of ratios over the prompts that both arms decoded. OUTPUT/<device>.json has all
numbers, OUTPUT/<device>.md the tables. Shape suffixes: P prompts, G positions of a draft.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipelines.engines.engine import ROOT, VLLM, Block, Engine, race, vllm
from pipelines.gguf_file import GgufFile
from pipelines.measuring.arm_rows import chain
from pipelines.measuring.provenance import commit_of, provenance
from pipelines.measuring.tables import Rows
from pipelines.outputs import replacing, write_json
from pipelines.places import read_facts, read_pair
from pipelines.prompt_table import read_prompts
from pipelines.report.section import Unit, shown
from pipelines.stages.device import describe_device
from predictors.training.intervals import DocumentBootstrap, percentiles
from runtime.device import native_dtype
from runtime.eagle3.checkpoint import eagle3_folder

OURS, LLAMA = "Draftwright", "llama.cpp"
PLAIN, CHAIN, EAGLE = f"{OURS}: plain", OURS + ": chain of {}", VLLM + ": EAGLE-3 of {}"
REPLICATES = 10_000
NOTES = {  # by engine
    VLLM: "n-gram drafts 5 tokens where 2 to 4 match; models are compiled where a row does not say eager",
    LLAMA: "the weights have 4 bits, and those of the others are made from them; node-llama-cpp's lookup keeps at most one "
    "drafted token a pass",
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipelines.peers", description=__doc__.split(":")[0])
    add = parser.add_argument
    add("--pair", type=Path, required=True, help="folder of the pair stage")
    add("--prompts", type=Path, required=True, help="folder of prompts, of which the first test ones are decoded")
    add("--output", type=Path, required=True, help="folder of the results")
    add("--auto", type=Path, help="bundle of tuning (default: auto beside the pair, where it is there)")
    add("--environment", type=Path, default=Path(".venv-peers"), help="of the other engines (default: %(default)s)")
    add("--arms", nargs="+", default=[""], help="only those whose names hold one of these texts, and ours plain")
    add("--count", type=int, default=24, help="prompts (default: %(default)s)")
    add("--block", type=int, default=3, help="prompts that an arm decodes in one go (default: %(default)s)")
    add("--new-tokens", type=int, default=96, help="of each prompt (default: %(default)s)")
    add(
        "--gammas",
        type=int,
        nargs="+",
        default=[2, 4],
        help="lengths of drafts, ours and EAGLE-3's in vLLM (default: 2 4)",
    )
    add("--threads", type=int, default=2, help="of every engine (default: %(default)s)")
    add("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="of weights, but for GGUF files")
    args = parser.parse_args(arguments)
    if args.dtype == "auto":
        args.dtype = str(native_dtype(torch.device("cpu"))).removeprefix("torch.")
    engines = chosen(engines_of(args), args.arms)
    prompts = read_prompts(args.prompts, "test", args.count)
    cut = [prompts[start : start + args.block] for start in range(0, len(prompts), args.block)]
    rows, failed = race(engines, [Block(some, [args.new_tokens] * len(some)) for some in cut], args.threads)
    if PLAIN in failed:
        sys.exit(f"{PLAIN}: {failed[PLAIN]}")
    device = describe_device()
    record = {
        "origin": provenance(device),
        "settings": {name: getattr(args, name) for name in ("block", "new_tokens", "gammas", "threads", "dtype")},
        "engines": {engine.name: engine.facts for engine in engines if engine.facts},
        "counters": {f"{engine.name}: {engine.arms[0]}": engine.counters for engine in engines if engine.counters},
        "failed": failed,
        "arms": [compared(rows, arm) for arm in dict.fromkeys(sorted(row["arm"] for row in rows))],
        "accepted": {str(n): accepted(rows, (EAGLE.format(n), CHAIN.format(n)), n) for n in args.gammas},
    }
    write_json(args.output / f"{device['slug']}.json", record)
    with replacing(args.output / f"{device['slug']}.md") as path:
        path.write_text(page(record))
    print(page(record))


def engines_of(args: argparse.Namespace) -> list[Engine]:
    """Ours with all its arms, vLLM and llama.cpp with one, as what they draft with belongs to a process there."""
    location, home = read_pair(args.pair), args.environment.resolve()
    ours: dict[str, Any] = {"plain": {"method": "autoregressive"}, "lookup": drafting("lookup", length=8, least=1)}
    theirs: dict[str, Any] = {"plain": None, "plain, eager": None}
    theirs["n-gram"] = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    for gamma in args.gammas if location.draft else ():
        ours[f"chain of {gamma}"] = chain(gamma)
        otherwise = {"kind": "takeover", "match": 4, "length": 8, "otherwise": {"kind": "fixed", "gamma": gamma}}
        takeover = drafting("chain", gamma=max(8, gamma), lookup={"length": 8}) | {"controller": otherwise}
        ours[f"lookup or chain of {gamma}"] = takeover
        if eagle3_folder(str(location.draft)):
            eagle = {"method": "eagle3", "model": location.draft, "num_speculative_tokens": gamma}
            theirs[f"EAGLE-3 of {gamma}"] = eagle
    if (auto := args.auto or args.pair.parent / "auto").is_dir():
        ours["auto"] = {"bundle": str(auto.resolve())}
    common = {"threads": args.threads, "dtype": args.dtype}
    ours_options = common | {"models": location.models, "arms": ours}
    engines = [Engine(OURS, list(ours), (sys.executable, "-m", "pipelines.engines.ours", json.dumps(ours_options)))]
    for name, speculative in theirs.items():
        options = common | {"target": location.target, "eager": "eager" in name, "speculative": speculative}
        engines.append(vllm(name, home, **options))
    gguf = read_facts(args.pair).get("gguf", {}).get("target")
    for name in ("plain", "lookup") if gguf else ():
        file = GgufFile(gguf["file"], gguf.get("package")).path()
        options = common | {
            "package": str(home / "node_modules/node-llama-cpp"),
            "gguf": str(file),
            "lookup": name != "plain",
        }
        program = (str(home / "bin/node"), str(ROOT / "pipelines/engines/llama_cpp.mjs"))
        engines.append(Engine(LLAMA, [name], (*program, json.dumps(options))))
    return engines


def drafting(kind: str, **options: Any) -> dict[str, Any]:
    """A decoder's configuration."""
    return {"method": "speculative", "drafter": {"kind": kind, **options}, "verifier": "block"}


def chosen(engines: Sequence[Engine], texts: Sequence[str]) -> list[Engine]:
    """Engines with those of their arms whose names hold one of ``texts``, and with ours plain."""
    for engine in engines:
        full = {arm: f"{engine.name}: {arm}" for arm in engine.arms}
        engine.arms = [arm for arm, name in full.items() if name == PLAIN or any(text in name for text in texts)]
    return [engine for engine in engines if engine.arms]


def compared(rows: Rows, arm: str) -> dict[str, Any]:
    """Speeds of an arm and how many times ours plain they are; ``parts_at``: by prompt where its text parts from ours."""
    decodes, plain = by_prompt(rows, arm), by_prompt(rows, PLAIN)
    both = [(row, plain[prompt]) for prompt, row in decodes.items() if prompt in plain]
    bootstrap = DocumentBootstrap(np.array([row["document"] for row, _ in both]), REPLICATES, 0)
    found: dict[str, Any] = {"arm": arm}
    found["parts_at"] = {row["prompt"]: parting(row["tokens"], ours["tokens"]) for row, ours in both}
    for name, rate in {"after_prefill": after_prefill, "whole_request": whole_request}.items():
        theirs_2P, ours_2P = (np.array([rate(pair[side]) for pair in both]).T for side in (0, 1))
        speed, ours = (float(tokens_P.sum() / seconds_P.sum()) for tokens_P, seconds_P in (theirs_2P, ours_2P))
        over = percentiles(speed / ours, bootstrap.ratio(*theirs_2P) / bootstrap.ratio(*ours_2P))
        found[name] = {"tokens_per_second": speed, "over_plain": over, "tokens_and_seconds": theirs_2P.T.tolist()}
    return found


def by_prompt(rows: Rows, arm: str) -> dict[str, dict[str, Any]]:
    return {row["prompt"]: row for row in rows if row["arm"] == arm}


def after_prefill(row: Mapping[str, Any]) -> tuple[float, float]:
    return len(row["tokens"]) - row["emitted"][0], row["seconds"] - row["first"]


def whole_request(row: Mapping[str, Any]) -> tuple[float, float]:
    return len(row["tokens"]), row["seconds"]


def parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position, from 0, at which two texts differ; ``None`` where they are equal."""
    return next((place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), None)


def accepted(rows: Rows, arms: Sequence[str], gamma: int) -> dict[str, Any]:
    """Return by arm the share of rounds whose draft was accepted up to each position, with standard errors by bootstrap over
    documents.

    They are the rounds whose ``gamma`` + 1 tokens lie within what the texts of both ``arms`` have in common."""
    one, other = (by_prompt(rows, arm) for arm in arms)
    prompts = [prompt for prompt in one if prompt in other]
    texts = [(one[prompt]["tokens"], other[prompt]["tokens"]) for prompt in prompts]
    shared = [len(text) if (place := parting(text, rival)) is None else place for text, rival in texts]
    found = {}
    for arm, decodes in zip(arms, (one, other), strict=True):
        both = [decodes[prompt] for prompt in prompts]
        rounds_P1G = np.zeros((len(both), 1 + gamma))  # that there are, and that accepted at least 1, 2, …
        for rounds_1G, row, end in zip(rounds_P1G, both, shared, strict=True):
            start = row["emitted"][0]
            for emitted in row["emitted"][1:]:
                if start + gamma < end:
                    rounds_1G[:emitted] += 1
                start += emitted
        tested_P, *accepted_GP = rounds_P1G.T
        if tested_P.sum():
            bootstrap = DocumentBootstrap(np.array([row["document"] for row in both]), REPLICATES, 0)
            with np.errstate(invalid="ignore"):  # documents without such rounds
                errors = [float(np.nanstd(bootstrap.ratio(accepted_P, tested_P))) for accepted_P in accepted_GP]
            shares = [float(accepted_P.sum() / tested_P.sum()) for accepted_P in accepted_GP]
            found[arm] = {"rounds": int(tested_P.sum()), "shares": shares, "standard_errors": errors}
    return found


def page(record: Mapping[str, Any]) -> str:
    """Speeds, acceptance, origin and notes in Markdown."""
    origin, settings = record["origin"], record["settings"]
    lines = [
        "| arm | tokens/s after the prefill | over plain | of whole requests | over plain | texts equal to plain's |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for one in record["arms"]:
        speeds = [one[name] for name in ("after_prefill", "whole_request")]
        cells = [
            cell for at in speeds for cell in (f"{at['tokens_per_second']:.1f}", shown(at["over_plain"], Unit.TIMES))
        ]
        parted = sorted(place for place in one["parts_at"].values() if place is not None)
        equal = f"{len(one['parts_at']) - len(parted)} of {len(one['parts_at'])}"
        cells.append(equal + (f", others from token {parted[0] + 1} on" if parted else ""))
        lines.append(f"| {one['arm']} | {' | '.join(cells)} |")
    drafted = [pair for arms in record["accepted"].values() for pair in arms.items()]
    lines += ["", "| arm | rounds | accepted up to position 1, 2, … |", "|---|---|---|"] if drafted else []
    for arm, one in drafted:
        shares = [
            f"{share:.3f} ± {error:.3f}" for share, error in zip(one["shares"], one["standard_errors"], strict=True)
        ]
        lines.append(f"| {arm} | {one['rounds']} | {', '.join(shares)} |")
    said = {f"{name} {version}" for facts in record["engines"].values() for name, version in facts["versions"].items()}
    lines += ["", f"*{origin['device']['cpu']}, {settings['threads']} threads, {settings['dtype']}, temperature 0. "]
    lines[-1] += f"{settings['new_tokens']} new tokens a prompt, arms interleaved by {settings['block']} prompts. "
    lines[-1] += "95 % intervals by bootstrap over documents; ± standard errors, of rounds before texts part. "
    lines[-1] += f"Commit {commit_of(origin, '`{}`')}, {origin['date']}; {', '.join(sorted(said))}.*"
    lines += ["", *(f"- {name}: {note}." for name, note in NOTES.items() if name in record["engines"])]
    return "\n".join([*lines, *(f"- {arm}: {why}" for arm, why in record["failed"].items())]) + "\n"


if __name__ == "__main__":
    main()
