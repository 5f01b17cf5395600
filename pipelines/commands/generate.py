"""Decode a prompt and print its text and statistics.

Standard input is the prompt if none is given. Imports nothing but the runtime.

    draftwright generate data/smollm2/pair --bundle data/smollm2/auto --chat --prompt "Why is the sky blue?"
    draftwright generate --target path/or/id --draft path/or/id --method '{"method": "speculative"}' --prompt "Hello"
    draftwright generate --target path/or/id --prompt "Hello" --method '{"method": "progressive_tree"}'    # no draft model
    draftwright generate data/smollm2/pair --temperature 1 --prompt "import" --method '{"method": "speculative",
        "verifier": "traversal", "drafter": {"kind": "delayed_tree", "k": 3, "l1": 1, "l2": 3}}'
"""

import argparse
import io
import json
import os
import sys
from pathlib import Path
from time import perf_counter

from pipelines.outputs import decoded
from pipelines.places import read_pair
from pipelines.terminal import GrowingText
from predictors.rounds import RoundRecord, block_efficiency, hit_rate, mean_accepted_length
from runtime import Decoder, ModelPair, Randomness, build_decoder, load_decoder
from runtime.request import encoded, encoded_chat

DEFAULT_METHOD = '{"method": "speculative"}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pair_folder", type=Path, nargs="?", help="output of the pair stage (or use --target and --draft)")
    add("--target", help="local folder or hub id of the target")
    add("--draft", help="local folder or hub id of the draft")
    add("--bundle", type=Path, help="decode with this exported controller")
    prices = "this machine's latency profile: warn if --bundle was exported for other prices"
    add("--latency", type=Path, help=prices)
    add("--reprice", action="store_true", help="let --bundle choose by the prices of --latency")
    record = "append a line about the request, for draftwright drift; needs --bundle"
    add("--monitor", type=Path, metavar="FILE", help=record)
    add("--method", help=f"decoder configuration as JSON (default without --bundle: {DEFAULT_METHOD})")
    add("--prompt", default="-", help="text of the prompt; '-' reads standard input (default)")
    add("--chat", action="store_true", help="the prompt is a user's message, in the target's chat template")
    add("--max-new-tokens", type=int, default=64)
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-k", type=int, default=0)
    add("--top-p", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--invariant", action="store_true", default=None, help="the same text per --seed, whatever drafts")
    add("--device", default="auto")
    add("--dtype", default="auto", help="number format (default: what the device is built for)")
    add("--json", action="store_true", help="print one JSON line with tokens and statistics instead of text")


def run(args: argparse.Namespace) -> None:
    pair = _load_pair(args)
    decoder = _decoder(args, pair)
    given = sys.stdin.buffer if args.prompt == "-" else io.BytesIO(os.fsencode(args.prompt))
    text = decoded(given, "the prompt")
    before, own = encoded(pair.tokenizer, text)
    prompt = asked(pair, text) if args.chat else before + own
    options = {name: getattr(args, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p", "invariant")}
    rounds: list[RoundRecord] = []
    tokens: list[int] = []
    growing, start = GrowingText(pair.tokenizer), perf_counter()
    for step in decoder.stream(prompt, randomness=Randomness(args.seed), **options):
        rounds.append(step.record)
        tokens += step.tokens
        if not args.json:  # the text as it comes
            growing.show(tokens)
    statistics = _statistics(rounds, tokens, perf_counter() - start)
    if args.json:
        said = {"tokens": tokens, "text": pair.tokenizer.decode(tokens)}
        print(json.dumps(said | statistics))
    else:
        growing.show(tokens, last=True)
        print("\n" + ", ".join(f"{name} {value:.4g}" for name, value in statistics.items()), file=sys.stderr)


def asked(pair: ModelPair, text: str) -> list[int]:
    """Tokens of a user's message, up to where the answer begins. `ValueError` where the target has no chat template."""
    if not getattr(pair.tokenizer, "chat_template", None):
        raise ValueError("--chat needs the target's chat template, and its tokenizer has none: leave --chat out.")
    return encoded_chat(pair.tokenizer, [{"role": "user", "content": text.strip()}])


def _load_pair(args: argparse.Namespace) -> ModelPair:
    if (args.pair_folder is None) == (args.target is None):
        raise ValueError("name either a pair folder or --target (and --draft).")
    models = {"target": args.target, "draft": args.draft}
    if args.pair_folder is not None:
        models = read_pair(args.pair_folder).models
        if args.device != "auto":  # goes before where the pair's block has them
            models |= {"device_map": None, "draft_device": None}
    pair = ModelPair.load(**models, device=args.device, dtype=args.dtype)
    if pair.tokenizer is None:
        raise ValueError(f"{models['target']} has no tokenizer files, so the prompt cannot be encoded.")
    return pair


def _decoder(args: argparse.Namespace, pair: ModelPair) -> Decoder:
    if args.bundle:
        if args.method is not None:
            raise ValueError(f"--bundle {args.bundle} holds a decoder, and --method names another. Leave one out.")
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
