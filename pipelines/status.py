"""Who is champion and who challenges, with the gate's last verdict, of every registered bundle of a pair.

draftwright status --pair pystdlib
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.promotion.champions import Champions, Version


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, help="name of the pair")


def run(args: argparse.Namespace) -> None:
    from pipelines.promotion.champions import Champions, names_of
    from pipelines.registry import Registry

    client = Registry().client
    names = names_of(client, args.pair)
    if not names:
        raise ValueError(f"nothing of pair {args.pair} is registered. Run draftwright register (or make repro) first.")
    for name in names:
        champions = Champions(client, name)
        champion, challenger = champions.champion(), champions.challenger()
        behind = "" if champions.follows() else " (the alias is behind: the next promotion or rollback mends it)"
        print(
            f"{name}: champion {_shown(champion)}, challenger {_shown(challenger)}{_judged(champions, challenger)}{behind}"
        )


def _shown(version: "Version | None") -> str:
    return "none" if version is None else f"version {version.version} ({version.sha256[:12]})"


def _judged(champions: "Champions", challenger: "Version | None") -> str:
    """What the gate last said of the challenger, and at which look."""
    from pipelines.promotion.verdict import outcome_of

    records = [] if challenger is None else champions.verdicts(challenger.version)
    if not records:
        return ""
    looks = f" at look {records[-1]['look']} of {records[-1]['looks']}" if "look" in records[-1] else ""
    return f", {outcome_of(records[-1])}{looks}"
