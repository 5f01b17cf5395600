"""Put back the champion before the present one.

Repeat it to go back further.

    draftwright rollback --pair pystdlib --predictor hrad
"""

import argparse

from pipelines.promotion.champions import Champions
from pipelines.registry import Registry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, help="name of the pair")
    parser.add_argument("--predictor", required=True, help="name of the bundle")
    parser.add_argument("--break-lock", action="store_true", help="of a promotion or rollback that was killed")


def run(args: argparse.Namespace) -> None:
    champions = Champions(Registry().client, f"{args.pair}-{args.predictor}", args.break_lock)
    event = champions.rollback()
    standing = champions.champion()
    assert standing is not None
    print(f"{champions.name}: version {event.version} rolled back, version {standing.version} is champion again")
