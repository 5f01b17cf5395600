"""Commands around the MLflow model registry (``register``, ``fetch``, ``status``, ``history``, ``rollback``) and ``reports``."""

import json
import re
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.gate.verdict import CHALLENGER, PASSED
from pipelines.terminal import add_json_argument, brief, recording

if TYPE_CHECKING:
    from pipelines.registry.champions import Champions

MODEL = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))$")


def add_arguments(parser: ArgumentParser, command: str) -> None:
    if command == "reports":
        parser.add_argument(
            "data", type=Path, nargs="?", default=Path("data"), help="data folder (default: %(default)s)"
        )
    elif command == "register":
        parser.add_argument("--data", type=Path, default=Path("data"), help="data folder (default: %(default)s)")
    elif command == "fetch":
        parser.add_argument("model", help="models:/NAME@ALIAS, models:/NAME/VERSION or a bundle's folder")
        replaced = "folder to write; an earlier one is replaced when the new one is complete"
        parser.add_argument("folder", type=Path, help=replaced)
    else:
        parser.add_argument("--pair", required=True, help="name of the pair")
    if command == "status":
        add_json_argument(parser)
    if command in ("history", "rollback"):
        parser.add_argument("--predictor", required=True, help="name of the bundle")


def register(args: Namespace) -> None:
    """Register exported bundles in the MLflow model registry (idempotent: one version per bundle content).

    draftwright register
    """
    from pipelines.registry.versions import Registry
    from predictors.bundle import AUTO, CARD

    cards = [card for place in (f"bundles/*/{CARD}", f"{AUTO}/{CARD}") for card in args.data.glob(f"*/{place}")]
    folders = sorted(card.parent for card in cards)
    if not folders:
        raise ValueError(f"no bundle under {args.data}/*/bundles/ or {args.data}/*/auto. Run dvc repro first.")
    registry = Registry()
    for folder in folders:
        made = registry.register(folder.relative_to(args.data).parts[0], folder)
        state = "registered" if made.is_new else "already registered"
        print(f"{folder}: {state} as {made.name} version {made.version}, alias {CHALLENGER}")


def fetch(args: Namespace) -> None:
    """Fetch a bundle from the MLflow model registry, or from another folder, into a folder that ``load_decoder`` runs.

    The content hash of what arrives must be the one that the version was tagged with when it was registered. A folder is copied
    without MLflow, which a host that only serves need not have; a bundle that is damaged or was edited is refused.

        draftwright fetch models:/smollm2-hrad@champion served/hrad
        draftwright fetch models:/smollm2-hrad/3 served/hrad
        draftwright fetch /mnt/share/bundles/hrad served/hrad
    """
    from pipelines.registry.versions import Registry, copy_bundle, registered_model

    found = MODEL.match(args.model)
    if found is None and Path(args.model).is_dir():
        print(f"{args.folder}: a copy of {args.model}, content {copy_bundle(Path(args.model), args.folder)[:12]}")
        return
    if found is None:
        raise ValueError(
            f"{args.model!r} names no registered model and no folder: say models:/NAME@ALIAS, models:/NAME/VERSION or a path."
        )
    registry = Registry()
    name, alias, version = found["name"], found["alias"], found["version"]
    if alias:
        aliases = registered_model(registry.client, name).aliases
        if alias not in aliases:
            raise ValueError(f"{name} has no alias {alias!r}. Known: {', '.join(sorted(aliases)) or 'none'}.")
        version = str(aliases[alias])
    print(f"{args.folder}: {name} version {version}, content {registry.fetch(name, version, args.folder)[:12]}")


def status(args: Namespace) -> None:
    """Print who is champion and who challenges, with the gate's last verdict, of every registered bundle of a pair.

    draftwright status --pair smollm2
    """
    from pipelines.registry.champions import Champions, names_of
    from pipelines.registry.versions import Registry

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
    judged = "" if verdict is None else f", {verdict['verdict']}{' with the reserve' if verdict['reserve'] else ''}"
    return f"{name}: {'' if alias_follows else '(stale alias) '}{who}{judged}"


def history(args: Namespace) -> None:
    """Print every change of champion of a registered bundle, oldest first, with what the gate had said.

    draftwright history --pair smollm2 --predictor hrad
    """
    champions = _champions(args.pair, args.predictor)
    events = champions.history()
    for number, event in enumerate(events, 1):
        forced = f", forced: {event.forced}" if event.forced else ""
        changed = f"version {event.version} ({event.sha256[:12]}) {event.action}"
        gate = f", gate: {event.verdict}" if event.verdict else ""
        print(f"{number:4d}  {event.at}  {changed} by {event.by}{gate}{forced}")
    if not events:
        print(f"{champions.name} never had a champion")


def rollback(args: Namespace) -> None:
    """Put back the champion before the present one, unless its files are gone.

    Repeat it to go back further.

        draftwright rollback --pair smollm2 --predictor hrad
    """
    from pipelines.registry.versions import Registry

    champions = _champions(args.pair, args.predictor)
    earlier = champions.earlier()
    with Registry().stored(champions.name, earlier.version):
        event = champions.rollback()
    print(f"{champions.name}: version {event.version} rolled back, version {earlier.version} is champion again")


def _champions(pair: str, predictor: str) -> "Champions":
    from pipelines.registry.champions import Champions
    from pipelines.registry.versions import Registry

    return Champions(Registry().client, f"{pair}-{predictor}")


def reports(args: Namespace) -> None:
    """Print where the reports are, what each decided, and by which commands bundles that the gate passed are promoted.

    draftwright reports
    """
    from pipelines.stages.report import PAGE, RECORD

    pages = [page for page in sorted(args.data.glob(f"*/reports/*/{PAGE}")) if (page.parent / RECORD).is_file()]
    if not pages:
        raise ValueError(f"no report below {args.data}. Run dvc repro (or make repro) first.")
    for page in pages:
        record = json.loads((page.parent / RECORD).read_text())
        release = record["sections"].get("release", {"tables": []})
        print("\n  ".join([str(page), record["decision"], *([release["finding"]] if "finding" in release else [])]))
        for row in (row for table in release["tables"] if table["name"] == "verdicts" for row in table["rows"]):
            if row["verdict"] == PASSED:
                print(f"  draftwright promote --pair {page.parents[2].name} --predictor {row['bundle']}")
