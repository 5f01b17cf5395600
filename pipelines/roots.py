"""Collect root traces: what every delayed tree would emit at places of the target's own text.

    python -m pipelines.roots --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/roots

Parameters: section ``traces.roots`` of the pair. Interrupt it whenever you like: finished shards are kept.
"""

import argparse
import sys
from time import monotonic

from pipelines.parameters import load_parameters
from pipelines.traces import add_collection_arguments, open_collection, progress
from trace_collection.roots import RootTraceConfig, collect_roots

SECTION = "traces.roots"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(RootTraceConfig, args.pair, SECTION, args.params)
    pair, prompts, code = open_collection(args, config.threads, collect_roots)
    began = monotonic()
    done = collect_roots(pair, prompts, config, args.out, progress, code)
    print(
        f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run, {done['rows']} roots, "
        f"{monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["roots", *sys.argv[1:]])
