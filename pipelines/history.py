"""Print every change of champion of a registered bundle, oldest first, with what the gate had said.

draftwright history --pair pystdlib --predictor hrad
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, help="name of the pair")
    parser.add_argument("--predictor", required=True, help="name of the bundle")


def run(args: argparse.Namespace) -> None:
    from pipelines.promotion.champions import Champions
    from pipelines.registry import Registry

    champions = Champions(Registry().client, f"{args.pair}-{args.predictor}")
    events = champions.history()
    for event in events:
        forced = f", forced: {event.forced}" if event.forced else ""
        changed = f"version {event.version} ({event.sha256[:12]}) {event.action}"
        gate = f", gate: {event.verdict}" if event.verdict else ""
        print(f"{event.number:4d}  {event.at}  {changed} by {event.by}{gate}{forced}")
    if not events:
        print(f"{champions.name} never had a champion")
