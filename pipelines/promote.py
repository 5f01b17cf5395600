"""Promote a registered bundle to champion, if the gate lets it pass.

    draftwright promote --pair pystdlib --predictor hrad
    draftwright promote --pair pystdlib --predictor hrad --force "outage of the old one"

The version under alias ``challenger`` is timed beside the champion, or beside the best static chain where there is none, on test
prompts (minutes; an interrupted trial goes on where it stopped). The gate's verdict is printed as JSON and kept as a tag of the
version, each look under its own number; a refusal ends with exit code 1 and changes nothing else. ``--evidence`` judges an
earlier trial's file again, such as the one that stage ``trial`` left.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters import add_pair_arguments, load_parameters
from pipelines.places import add_place_arguments, fill_in

if TYPE_CHECKING:
    from pipelines.promotion.champions import Version
    from pipelines.promotion.gate import Evidence
    from pipelines.registry import Registry


PLACES = {"pair_folder": "pair", "prompts": "prompts", "latency": "latency", "output": "promotion"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="name of the bundle (registered as PAIR-PREDICTOR)")
    add_place_arguments(parser, PLACES)
    parser.add_argument("--evidence", type=Path, help="judge this evidence instead of measuring it")
    parser.add_argument(
        "--force",
        metavar="REASON",
        help="promote even if the gate refuses, unless the bundle cannot be tried; the reason is recorded",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure and judge, change nothing")
    parser.add_argument("--break-lock", action="store_true", help="of a promotion or rollback that was killed")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.promotion.champions import Champions
    from pipelines.promotion.gate import Bounds, judge, judged
    from pipelines.promotion.names import BEST_STATIC, VERDICT
    from pipelines.registry import Registry

    fill_in(args, PLACES)
    bounds = load_parameters(Bounds, args.pair, "promotion", args.params)
    registry = Registry()
    champions = Champions(registry.client, f"{args.pair}-{args.predictor}", args.break_lock)
    if not args.dry_run:
        champions.mend()
    challenger, champion = champions.challenger(), champions.champion()
    if challenger is None:
        raise ValueError(f"{champions.name} has no challenger. Register a bundle first (draftwright register).")
    if champion is not None and champion.sha256 == challenger.sha256:
        print(f"{champions.name} version {champion.version} is the champion already")
        return
    args.output = args.output / f"{args.predictor}-{challenger.version}"
    if args.evidence is not None:
        evidence = read_evidence(args.evidence)
    else:
        evidence = _measured(args, registry, champions.name, challenger, champion)
    if evidence.bundle_sha256 != challenger.sha256:
        raise ValueError(
            f"the evidence is on content {evidence.bundle_sha256[:12]}, and the challenger, version {challenger.version}, is "
            f"{challenger.sha256[:12]}. Measure again."
        )
    over = None if champion is None else champion.sha256
    if evidence.baseline != (over or BEST_STATIC):
        raise ValueError(
            f"the evidence compares with {evidence.baseline[:12]}, and the champion is another. Measure again."
        )
    verdict = judge(evidence, bounds)
    earlier = champions.verdicts(challenger.version)
    print(json.dumps(verdict.to_record(), indent=2))
    print(f"look number {len(earlier) + 1} at version {challenger.version}{_seen(earlier)}")
    place = args.output / VERDICT
    write_json(place, judged(evidence, verdict, bounds))
    refused = evidence.problem is not None or (not verdict.passed and not args.force)
    reasons = "; ".join(verdict.reasons)
    if args.dry_run and refused:
        raise ValueError(f"dry run: would be refused: {reasons}; nothing was changed ({place})")
    if args.dry_run:
        print(f"dry run: would pass{'' if verdict.passed else ', forced'}; nothing was changed ({place})")
        return
    if refused:
        champions.keep(challenger.version, verdict.to_record())
        raise ValueError(f"{champions.name} version {challenger.version} is refused: {reasons}")
    event = champions.promote(challenger.version, over, verdict.to_record(), None if verdict.passed else args.force)
    print(
        f"{champions.name} version {event.version} is champion" + (f", forced: {event.forced}" if event.forced else "")
    )


def _seen(earlier: list[dict[str, Any]]) -> str:
    """That the gate looked before: of many looks at chance, one passes."""
    passed = sum(verdict["passed"] for verdict in earlier)
    return f"; before: {len(earlier) - passed} refused, {passed} passed" if earlier else ""


def read_evidence(path: Path) -> "Evidence":
    """Evidence by itself, or as part of an earlier verdict's record (`judged`)."""
    from pipelines.promotion.gate import Evidence
    from predictors.config import parse_config

    try:
        record = json.loads(path.read_text())
        return parse_config(
            Evidence, record.get("evidence", record) if isinstance(record, dict) else record, "evidence"
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no evidence ({error}). Leave --evidence out to measure it.") from error


def _measured(
    args: argparse.Namespace, registry: "Registry", name: str, challenger: "Version", champion: "Version | None"
) -> "Evidence":
    """A trial of the challenger, fetched from the registry, as the champion is."""
    from pipelines.promotion import trial
    from pipelines.trial import tried

    fetched = {trial.CHALLENGER: challenger} | ({} if champion is None else {trial.CHAMPION: champion})
    bundles = {who: args.output / who for who in fetched}
    for who, version in fetched.items():
        registry.fetch(name, version.version, bundles[who])
    return tried(args, args.predictor, bundles)


if __name__ == "__main__":
    from pipelines.cli import main

    main(["promote", *sys.argv[1:]])
