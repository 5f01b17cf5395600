"""Print who is champion and who challenges, with the gate's last verdict, of every registered bundle of a pair.

draftwright status --pair pystdlib
"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pipelines.terminal import add_json_argument, brief, recording

if TYPE_CHECKING:
    from pipelines.promotion.champions import Champions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", required=True, help="name of the pair")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> None:
    from pipelines.promotion.champions import Champions, names_of
    from pipelines.registry import Registry

    client = Registry().client
    names = names_of(client, args.pair)
    if not names:
        raise ValueError(f"nothing of pair {args.pair} is registered. Run draftwright register (or make repro) first.")
    records = {name: _record(Champions(client, name)) for name in names}
    with recording(args.json) as show:
        show(records)
        print(brief([_line(name, **record) for name, record in records.items()], len(records)))


def _record(champions: "Champions") -> dict[str, Any]:
    """Both versions, what the gate last said of the challenger, and whether the alias is the history's champion."""
    champion, challenger = champions.champion(), champions.challenger()
    verdict = None if challenger is None else next(iter(champions.verdicts(challenger.version)[-1:]), None)
    versions = {"champion": champion and asdict(champion), "challenger": challenger and asdict(challenger)}
    return versions | {"verdict": verdict, "alias_follows": champions.follows()}


def _line(name: str, *, verdict: dict[str, Any] | None, alias_follows: bool, **versions: dict[str, str] | None) -> str:
    known = {role: made and f"{made['version']} ({made['sha256'][:12]})" for role, made in versions.items()}
    who = ", ".join(f"{role} {version or 'none'}" for role, version in known.items())
    judged = "" if verdict is None else f", {verdict['verdict']} at look {verdict['look']} of {verdict['looks']}"
    return f"{name}: {'' if alias_follows else '(stale alias) '}{who}{judged}"
