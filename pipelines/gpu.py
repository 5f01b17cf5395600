"""Check one GPU in a quarter of an hour: `python -m pipelines.gpu docs/gpu --pair FOLDER`.

Needs torch, transformers, safetensors, numpy, and pytest for the first part. Each part has a process and a time limit of its own,
and writes OUTPUT/<device>.json after every step: what was found survives whatever comes later. What it says is in <part>.log.

    tests            what only a CUDA device can show
    plain-SHAPE      plain decoding with random weights: share of the bandwidth, launches a round, idle time
    pair-SHAPE-c     the pair of FOLDER in that shape, its draft at a c-th of the cost: every method against its latency model

FOLDER holds small trained Llamas, ``target`` (with the tokenizer) and ``draft``, and ``bundles`` fitted on them. What comes out:
``share_of_bound``, seconds in which a copy moves the bytes of weights and cache over a token's; ``of_predicted``, seconds that
the measured latency profile gives an arm's own rounds over those that they took.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from pipelines.hardware import copy_bandwidth, joules, pass_bytes, watched
from pipelines.inflation import InflatedDraft, InflatedShape, inflated_bundle, inflated_to
from pipelines.measuring.provenance import provenance
from pipelines.outputs import write_json
from pipelines.stages.device import describe_device
from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile
from predictors.rounds import PHASES, RoundRecord
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder
from runtime.device import native_dtype
from runtime.latency import LatencyConfig, all_cells, sweep, tables_of

SHAPES = {  # vocabulary, target, and of the draft hidden size, layers, heads, their size
    "1b": (32000, InflatedShape(2048, 16, 32, 8, 64, 8192), (1024, 4, 16, 16, 64)),
    "7b": (32000, InflatedShape(4096, 32, 32, 32, 128, 11008), (2048, 12, 16, 16, 128)),
    "toy": (1024, InflatedShape(384, 16, 6, 6, 64, 1024), (192, 2, 3, 3, 64)),
}
SECONDS = {"tests": 180, "plain-1b": 60, "pair-1b-10": 150, "plain-7b": 60, "pair-7b-10": 200, "pair-7b-4": 150}
LIMIT, PROMPT = 4096, 128
TESTS = ("pytest", "-m", "gpu", "-ra", "--tb=short", "-p", "no:cacheprovider")
GRID = LatencyConfig(
    draft_rows=(1, 2, 6), target_tokens=(1, 3, 5, 9), reference_rows=(), reference_tokens=(),
    contexts=(PROMPT,), prefill_tokens=(PROMPT,), tree_rules=(), guessed=(2,), visits=2, calls=2,
)  # fmt: skip
TREE = {"method": "speculative", "drafter": {"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 3}, "verifier": "traversal"}


class Decoded(NamedTuple):
    prompt: list[int]
    tokens: list[int]
    seconds: float  # after the prefill
    rounds: list[RoundRecord]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pipelines.gpu", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("output", type=Path, help="folder of the results: one JSON file per device")
    add("--pair", type=Path, required=True, help="folder of the small trained pair")
    add("--parts", nargs="+", choices=SECONDS, default=list(SECONDS), help="default: all of them")
    add("--prompts", type=int, default=4, help="per arm and temperature (default: %(default)s)")
    add("--new-tokens", type=int, default=64, help="of each (default: %(default)s)")
    add("--forward", default="auto", help="of the pairs (default: %(default)s)")
    add("--toy", action="store_true", help="rehearse it on any machine, in small shapes")
    add("--inside", action="store_true", help=argparse.SUPPRESS)  # the process of one part
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser.parse_args(given)
    if not (args.toy or torch.cuda.is_available()):
        parser.error("there is no CUDA device. --toy rehearses it on a CPU, where the numbers mean nothing.")
    for name in args.parts:
        found, (kind, *of) = writer(args.output, name), name.split("-")
        if args.inside:
            part = decode_pair if kind == "pair" else decode_plain
            part(found, args, "toy" if args.toy else of[0], *map(float, of[1:]))
            continue
        inside = ["pipelines.gpu", *given, "--inside", "--parts", name]
        command = [*TESTS, "tests/runtime"] if kind == "tests" else inside
        start, limit = perf_counter(), SECONDS[name]
        args.output.mkdir(parents=True, exist_ok=True)
        with (args.output / f"{name}.log").open("w") as log:
            try:
                run = [sys.executable, "-m", *command]
                code = str(subprocess.run(run, stdout=log, stderr=subprocess.STDOUT, timeout=limit).returncode)
            except subprocess.TimeoutExpired:
                code = f"cut off after {limit:g} seconds"
        found(code=code, part_seconds=round(perf_counter() - start, 1))
        print(f"{name}: {code}, {perf_counter() - start:.0f} s")


def writer(folder: Path, part: str) -> Callable[..., None]:
    """A function that adds what ``part`` has found to the device's file."""
    commit = os.environ.get("COMMIT") or provenance({})["commit"]  # of a copy without its history, its owner says it
    origin: dict[str, Any] = {"device": describe_device(), "torch": torch.__version__, "commit": commit}
    path = folder / f"{origin['device']['slug']}.json"

    def add(**found: Any) -> None:
        known = json.loads(path.read_text()) if path.is_file() else {}
        write_json(path, known | origin | {part: known.get(part, {}) | found})

    return add


def decode_plain(add: Callable[..., None], args: argparse.Namespace, size: str) -> None:
    """Random weights: a token against its bound, then what the device does in 8 rounds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype, (vocabulary, shape, _) = native_dtype(device), SHAPES[size]
    with device:
        model = LlamaForCausalLM(shape.config(vocabulary, LIMIT)).to(dtype).eval()
    bandwidth, weights = copy_bandwidth(device), pass_bytes(model)
    row = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
    bound = (weights + (PROMPT + args.new_tokens / 2) * row) / bandwidth
    add(bandwidth=bandwidth, weights=weights)
    prompt = list(range(PROMPT))
    for way in ("graphed", "fused") if device.type == "cuda" else ("compact",):
        decoder = build_decoder(ModelPair(model, forward=way), {"method": "autoregressive"})
        decode(decoder, prompt, args.new_tokens, 0.0)  # records its programs
        before = joules(device)
        token = decode(decoder, prompt, args.new_tokens, 0.0).seconds / (args.new_tokens - 1)
        energy = (joules(device) - before) / args.new_tokens  # not a number where nothing counts it
        found = {"token_seconds": token, "share_of_bound": bound / token, **seen(decoder, prompt, 0.0, device)}
        add(**{way: found | ({"joules_per_token": energy} if isfinite(energy) else {})})


def decode_pair(add: Callable[..., None], args: argparse.Namespace, size: str, ratio: float) -> None:
    """Every arm on the same prompts in turn; and where a greedy text parts from plain decoding's."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype, (vocabulary, target, draft) = native_dtype(device), SHAPES[size]
    small = [LlamaForCausalLM.from_pretrained(args.pair / name, dtype=torch.float32) for name in ("target", "draft")]
    shapes = target, InflatedDraft(*draft, ratio).shape(target, vocabulary, small[1].config.intermediate_size)
    big = [inflated_to(*one, vocabulary, LIMIT, device, dtype) for one in zip(small, shapes, strict=True)]
    tokenizer, code = AutoTokenizer.from_pretrained(args.pair / "target"), sorted(Path("runtime").glob("decoding/*.py"))
    pair, text = (
        ModelPair(big[0], big[1], forward=args.forward),
        tokenizer("".join(path.read_text() for path in code))["input_ids"],
    )
    prompts = [text[start : start + PROMPT] for start in range(0, args.prompts * PROMPT, PROMPT)]
    cells, _ = all_cells(pair, GRID)
    rows = [row for visit in range(GRID.visits) for row in sweep(cells, Random(visit), 1, GRID.calls, int)]
    prices = LatencyProfile(tables_of(rows), size, {}, {})
    add(cost_ratio=prices.cost_ratio(PROMPT), profile=prices.to_record())
    arms = arms_of(pair, small, args.pair / "bundles", prices)
    for heat in (0.0, 1.0):
        made: dict[str, list[Decoded]] = {name: [] for name in arms}
        for arm in arms.values():  # records its programs
            decode(arm, prompts[0], args.new_tokens, heat)
        for number, prompt in enumerate(prompts):
            for name in Random(number).sample(list(arms), len(arms)):
                made[name].append(decode(arms[name], prompt, args.new_tokens, heat))
            add(**{f"T={heat:g}": {name: figures(some, prices, heat > 0) for name, some in made.items()}})
        add(**{f"rounds at T={heat:g}": {name: seen(arm, prompts[0], heat, device) for name, arm in arms.items()}})
        if not heat:
            add(gaps_where_texts_part={name: gaps(big[0], some, made["plain"]) for name, some in made.items()})


def arms_of(pair: ModelPair, small: Sequence[Any], bundles: Path, prices: LatencyProfile) -> dict[str, Decoder]:
    """Static arms, and those of the bundles that there are, at this device's prices."""
    ways = ("none", "streams") if pair.target.device.type == "cuda" else ("none",)
    configs: dict[str, dict[str, Any]] = {"plain": {"method": "autoregressive"}, "tree": TREE}
    configs |= {f"chain-{n}": {"method": "speculative", "drafter": {"kind": "chain", "gamma": n}} for n in (2, 4, 8)}
    configs |= {f"specbranch-no-hrad-{way}": {"preset": "specbranch-no-hrad", "overlap": way} for way in ways}
    arms = {name: build_decoder(pair, config) for name, config in configs.items()}
    with TemporaryDirectory() as folder:
        write_json(latency := Path(folder) / "prices.json", prices.to_record())
        for name in (name for name in ("survival", "takeover", "source", "grow", "hrad") if (bundles / name).is_dir()):
            bundle = inflated_bundle(bundles / name, Path(folder) / name, pair, small)
            for one in [{"preset": "specbranch", "overlap": way} for way in ways] if name == "hrad" else [{}]:
                arms["-".join([name, *one.values()])] = load_decoder(bundle, pair, one, latency, reprice=not one)
    return arms


def decode(decoder: Decoder, prompt: list[int], new_tokens: int, heat: float) -> Decoded:
    steps = decoder.stream(prompt, new_tokens, heat, randomness=Randomness(0), eos_token_id=[])
    tokens, records = list(next(steps).tokens), []
    start = perf_counter()
    for step in steps:
        tokens += step.tokens
        records.append(step.record)
    return Decoded(prompt, tokens, perf_counter() - start, records)


def seen(decoder: Decoder, prompt: list[int], heat: float, device: torch.device) -> dict[str, Any]:
    """Count what the device does in a round."""
    steps = decoder.stream(prompt, 256, heat, randomness=Randomness(0), eos_token_id=[])
    next(steps)
    return watched(lambda: next(steps), device)


def figures(some: Sequence[Decoded], prices: LatencyProfile, sampled: bool) -> dict[str, float]:
    """Speed, what the latency model makes of the same rounds, and shares of the phases."""
    seconds, rounds = sum(one.seconds for one in some), [record for one in some for record in one.rounds]
    price = RoundPrices(prices, sampled, quiet=False)
    foreseen = sum(price.ran(one.rounds, len(one.prompt)) for one in some)
    found = {
        "tokens_per_second": sum(len(one.tokens) - 1 for one in some) / seconds,
        "of_predicted": foreseen / seconds,
    }
    return found | {phase: sum(record.seconds.get(phase, 0.0) for record in rounds) / seconds for phase in PHASES}


def gaps(target: LlamaForCausalLM, some: Sequence[Decoded], plain: Sequence[Decoded]) -> list[float]:
    """Between the target's two largest logits, where greedy texts part from plain decoding's: small ones are near-ties."""
    found = []
    for one, own in ((one, own) for one, own in zip(some, plain, strict=True) if one.tokens != own.tokens):
        place = next(n for n, token in enumerate(own.tokens) if one.tokens[n] != token)
        given = torch.tensor([[*own.prompt, *own.tokens[:place]]], device=target.device)
        with torch.inference_mode():
            found.append(-float(target(given).logits[0, -1].float().topk(2).values.diff()))
    return found


if __name__ == "__main__":
    main()
