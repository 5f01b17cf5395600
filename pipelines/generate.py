"""Decode a prompt and print its text and statistics.

Standard input is the prompt if none is given. Imports nothing but the runtime.

    draftwright generate data/pystdlib/pair --bundle data/pystdlib/bundles/hrad --prompt "import"
    draftwright generate --target path/or/id --draft path/or/id --method '{"method": "speculative"}' --prompt "Hello"
    draftwright generate --target path/or/id --prompt "Hello" --method '{"method": "progressive_tree"}'    # no draft model
    draftwright generate data/pystdlib/pair --temperature 1 --prompt "import" --method '{"method": "speculative",
        "verifier": "traversal", "drafter": {"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 3}}'
"""

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter

from pipelines.pair_folder import read_pair
from predictors.bundle import read_bundle
from predictors.latency.serving import KEY
from predictors.rounds import RoundRecord, block_efficiency, hit_rate, mean_accepted_length
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder

DEFAULT_METHOD = '{"method": "speculative"}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pair_folder", type=Path, nargs="?", help="output of the pair stage (or use --target and --draft)"
    )
    parser.add_argument("--target", help="local folder or hub id of the target")
    parser.add_argument("--draft", help="local folder or hub id of the draft")
    parser.add_argument("--bundle", type=Path, help="decode with this exported controller")
    parser.add_argument(
        "--latency",
        type=Path,
        help="this machine's latency profile: serve as it says, and warn if --bundle was exported for other prices",
    )
    parser.add_argument("--reprice", action="store_true", help="let --bundle choose by the prices of --latency")
    parser.add_argument(
        "--monitor",
        type=Path,
        metavar="FILE",
        help="append a line about the request, for draftwright drift; needs --bundle",
    )
    parser.add_argument("--method", help=f"decoder configuration as JSON (default without --bundle: {DEFAULT_METHOD})")
    parser.add_argument("--prompt", default="-", help="text of the prompt; '-' reads standard input (default)")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    help_text = "number format; default: what --latency, else --bundle, says, else what the device is built for"
    parser.add_argument("--dtype", default="auto", help=help_text)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line with tokens and statistics instead of text"
    )


def run(args: argparse.Namespace) -> None:
    pair = _load_pair(args)
    decoder = _decoder(args, pair)
    decoder.start()
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    prompt = pair.tokenizer(text)["input_ids"]
    rounds, tokens, seconds = _decode(decoder, prompt, args, show=not args.json)
    statistics = _statistics(rounds, tokens, seconds)
    if decoder.lossy:
        print("note: lossy=True, this text need not follow the target's distribution", file=sys.stderr)
    if args.json:
        said = {"tokens": tokens, "text": pair.tokenizer.decode(tokens), "lossy": decoder.lossy}
        print(json.dumps(said | statistics))
    else:
        print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in statistics.items()), file=sys.stderr)


def _load_pair(args: argparse.Namespace) -> ModelPair:
    if (args.pair_folder is None) == (args.target is None):
        raise ValueError("name either a pair folder or --target (and --draft).")
    models = {"target": args.target, "draft": args.draft}
    if args.pair_folder is not None:
        models = read_pair(args.pair_folder).models
        if args.device != "auto":  # goes before where the pair's block has them
            models |= {"device_map": None, "draft_device": None}
    pair = ModelPair.load(**models, device=args.device, dtype=args.dtype, record=_record(args))
    if pair.tokenizer is None:
        raise ValueError(f"{models['target']} has no tokenizer files, so the prompt cannot be encoded.")
    return pair


def _record(args: argparse.Namespace) -> Path | None:
    """What says how to serve: this machine's profile, else the bundle's card if it was priced by one."""
    if args.dtype != "auto":
        return None
    if args.latency is not None:
        return Path(args.latency)
    return args.bundle if args.bundle is not None and KEY in read_bundle(args.bundle).card else None


def _decoder(args: argparse.Namespace, pair: ModelPair) -> Decoder:
    if args.bundle:
        if args.method is not None:
            raise ValueError(
                f"--bundle {args.bundle} holds a decoder, and --method names another. Leave one of the two out."
            )
        return load_decoder(args.bundle, pair, latency=args.latency, reprice=args.reprice, monitor=args.monitor)
    if args.monitor:
        raise ValueError("--monitor records what a bundle's card can be compared with: name its --bundle.")
    if args.reprice:
        raise ValueError("--reprice says what prices an exported controller follows: name its --bundle.")
    text = args.method or DEFAULT_METHOD
    try:
        method = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--method is not JSON ({error}): {text!r}. Example: {DEFAULT_METHOD}") from error
    if not isinstance(method, dict):
        raise ValueError(f"--method must be a JSON object, got {text!r}. Example: {DEFAULT_METHOD}")
    return build_decoder(pair, method)


def _decode(
    decoder: Decoder, prompt: list[int], args: argparse.Namespace, show: bool
) -> tuple[list[RoundRecord], list[int], float]:
    """Decode and print the text as it comes."""
    rounds: list[RoundRecord] = []
    tokens: list[int] = []
    printed = 0
    start = perf_counter()
    for step in decoder.stream(
        prompt,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        randomness=Randomness(args.seed),
    ):
        rounds.append(step.record)
        tokens += step.tokens
        if show:
            text = decoder.pair.tokenizer.decode(tokens)
            print(text[printed:], end="", flush=True)
            printed = len(text)
    return rounds, tokens, perf_counter() - start


def _statistics(rounds: list[RoundRecord], tokens: list[int], seconds: float) -> dict[str, float]:
    speculative = rounds[1:]
    alone = {"hit_rate": hit_rate(speculative)} if any(record.guessed for record in speculative) else {}
    return {
        "new_tokens": len(tokens),
        "seconds": seconds,
        "tokens_per_second": len(tokens) / seconds,
        "target_passes": len(rounds),
        "block_efficiency": block_efficiency(speculative) if speculative else 1.0,
        "m_incl": mean_accepted_length(speculative, include_correction=True) if speculative else 1.0,
    } | alone
