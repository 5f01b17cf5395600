"""Collect token traces: what the draft knew around every token it drafted, and what became of the token.

    python -m pipelines.tokens --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/tokens

Parameters: section ``traces.tokens`` of the pair. Interrupt it whenever you like: finished shards are kept.
"""

import argparse
import sys

from pipelines.parameters import load_parameters
from pipelines.traces import add_collection_arguments, open_collection, progress
from trace_collection.tokens import TokenTraceConfig, collect_tokens

SECTION = "traces.tokens"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(TokenTraceConfig, args.pair, SECTION, args.params)
    pair, prompts, code = open_collection(args, config.threads, collect_tokens)
    done = collect_tokens(pair, prompts, config, args.out, progress, code)
    print(
        f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run, {done['rows']} tokens"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["tokens", *sys.argv[1:]])
