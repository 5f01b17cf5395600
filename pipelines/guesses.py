"""Collect guess traces: how a model drafts for itself, in many ways, on validation prompts.

    python -m pipelines.guesses --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/guesses

Parameters: section ``traces.guesses`` of the pair. Interrupt it whenever you like: finished shards are kept.
"""

import argparse
import sys

from pipelines.measuring.names import VALIDATION
from pipelines.parameters import load_parameters
from pipelines.traces import add_collection_arguments, open_collection, progress
from trace_collection.guesses import GuessTraceConfig, collect_guesses

SECTION = "traces.guesses"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(GuessTraceConfig, args.pair, SECTION, args.params)
    pair, prompts, code = open_collection(args, config.threads, collect_guesses)
    chosen = [prompt for prompt in prompts if prompt.split == VALIDATION][: config.prompts]
    done = collect_guesses(pair, chosen, config, args.out, progress, code)
    print(
        f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run, {done['rows']} passes"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["guesses", *sys.argv[1:]])
