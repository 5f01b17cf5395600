"""Collect text traces: along texts of the target, what the draft says at every place and beside it.

    python -m pipelines.texts --pair pystdlib data/pystdlib/pair data/pystdlib/prompts data/pystdlib/traces/texts

From them any policy for chains and branches can be replayed on any machine's latency profile (stage ``replay``). Prompts of slice
`edit` are collected, too. Parameters: section ``traces.texts`` of the pair. Interrupt it whenever you like: finished shards
are kept.
"""

import argparse
import sys

from pipelines.parameters import load_parameters
from pipelines.prompt_table import EDIT, MEASURED_SPLITS, read_prompts
from pipelines.traces import add_collection_arguments, open_collection, progress
from trace_collection.texts import TextTraceConfig, collect_texts

SECTION = "traces.texts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_collection_arguments(parser)


def run(args: argparse.Namespace) -> None:
    config = load_parameters(TextTraceConfig, args.pair, SECTION, args.params)
    pair, prompts, code = open_collection(args, config.threads, collect_texts)
    edits = [prompt for split in MEASURED_SPLITS for prompt in read_prompts(args.prompts, split, slices=(EDIT,))]
    done = collect_texts(pair, prompts, config, args.out, progress, code, edits)
    print(
        f"{args.out}: {done['shards']} shards, {done['kept']} of them kept from an earlier run, {done['rows']} places"
    )


if __name__ == "__main__":
    from pipelines.cli import main

    main(["texts", *sys.argv[1:]])
