"""Promote a registered bundle to champion, if the gate lets it pass.

    draftwright promote --pair pystdlib --predictor hrad
    draftwright promote --pair pystdlib --predictor hrad --force "outage of the old one"

The version under alias ``challenger`` is timed beside the champion, if there is one, plain decoding and static chains (minutes;
an interrupted trial goes on where it stopped). The gate's verdict is printed as JSON and in five lines, and kept as a tag of the
version. Refused and inconclusive end with exit code 1 and change nothing else. After an inconclusive verdict the next call takes
the next look, on new documents of the reserve; a refusal stands. ``--evidence`` judges an earlier trial's file again, such as the
one that stage ``trial`` left.
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
    from pipelines.promotion.evidence import Evidence
    from pipelines.registry import Registry


PLACES = {"pair_folder": "pair", "prompts": "prompts", "latency": "latency", "output": "promotion"}
Records = list[dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="name of the bundle (registered as PAIR-PREDICTOR)")
    add_place_arguments(parser, PLACES)
    parser.add_argument("--evidence", type=Path, help="judge this evidence instead of measuring it")
    parser.add_argument(
        "--force",
        metavar="REASON",
        help="promote even if it does not pass, unless the bundle cannot be tried; the reason is recorded",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure and judge, change nothing")
    parser.add_argument("--break-lock", action="store_true", help="of a promotion or rollback that was killed")


def run(args: argparse.Namespace) -> None:
    from pipelines.outputs import write_json
    from pipelines.promotion.bounds import Bounds
    from pipelines.promotion.champions import Champions
    from pipelines.promotion.gate import judge, judged
    from pipelines.promotion.names import VERDICT
    from pipelines.promotion.verdict import lines
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
    earlier = champions.verdicts(challenger.version)
    if args.evidence is not None:
        evidence = read_evidence(args.evidence)
    else:
        number = next_look(earlier, champions.name, challenger.version)
        evidence = _measured(args, registry, champions.name, challenger, champion, number)
    over = None if champion is None else champion.sha256
    _require_match(evidence, challenger, over)
    record = judged(evidence, judge(evidence, bounds), bounds)
    require_new(record, earlier)
    print(json.dumps({name: value for name, value in record.items() if name != "evidence"}, indent=2))
    print(*lines(record), sep="\n")
    place = args.output / VERDICT
    write_json(place, record)
    _act(args, champions, challenger, over, record, place)


def _act(
    args: argparse.Namespace,
    champions: Any,
    challenger: "Version",
    over: str | None,
    record: dict[str, Any],
    place: Path,
) -> None:
    """Promote, or say why not."""
    kept = {name: value for name, value in record.items() if name not in ("evidence", "bounds")}
    stopped = record["evidence"]["problem"] is not None or (not record["passed"] and not args.force)
    failed = [check for check in record["checks"] if not check["passed"]]
    reasons = "; ".join(f"{check['name']}: {check['found']}, wanted {check['wanted']}" for check in failed)
    outcome = record["verdict"]
    if args.dry_run and stopped:
        raise ValueError(f"dry run: would be {outcome}: {reasons}; nothing was changed ({place})")
    if args.dry_run:
        print(f"dry run: would pass{'' if record['passed'] else ', forced'}; nothing was changed ({place})")
        return
    if stopped:
        champions.keep(challenger.version, kept)
        raise ValueError(f"{champions.name} version {challenger.version} is {outcome}: {reasons}")
    event = champions.promote(challenger.version, over, kept, None if record["passed"] else args.force)
    forced = f", forced: {event.forced}" if event.forced else ""
    print(f"{champions.name} version {event.version} is champion{forced}")


def next_look(earlier: Records, name: str, version: str) -> int:
    """The number of the next look after the kept verdicts; `ValueError` after a refusal, which stands."""
    from pipelines.promotion.verdict import REFUSED, outcome_of

    looks = [record for record in earlier if _took_a_look(record)]
    if looks and outcome_of(looks[-1]) == REFUSED:
        raise ValueError(
            f"{name} version {version} was refused at look {looks[-1].get('look', 1)}, and more looks would not change what is "
            "known. Register another bundle, or promote this evidence with --evidence and --force."
        )
    return max((int(record.get("look", 1)) for record in looks), default=0) + 1


def require_new(record: dict[str, Any], earlier: Records) -> None:
    """`ValueError` for a second measurement of a look that was taken: only the first one counts."""
    for kept in earlier:
        again = _took_a_look(kept) and kept.get("look", 1) >= record["look"]
        if again and kept.get("evidence_sha256") not in (None, record["evidence_sha256"]):
            raise ValueError(
                f"look {record['look']} was taken already, by other evidence. Of many measurements one passes by chance: "
                "measure the next look (leave --evidence out)."
            )


def _took_a_look(kept: dict[str, Any]) -> bool:
    """Whether anything was measured for a kept verdict; those of version 1 do not say."""
    return kept.get("smallest_gain", 0.0) is not None


def _require_match(evidence: "Evidence", challenger: "Version", over: str | None) -> None:
    """`ValueError` unless the evidence is on the challenger, and over the champion."""
    if evidence.bundle_sha256 != challenger.sha256:
        raise ValueError(
            f"the evidence is on content {evidence.bundle_sha256[:12]}, and the challenger, version {challenger.version}, is "
            f"{challenger.sha256[:12]}. Measure again."
        )
    if evidence.champion != over:
        found = "no champion" if evidence.champion is None else f"champion {evidence.champion[:12]}"
        raise ValueError(f"the evidence compares with {found}, and the champion is another. Measure again.")


def read_evidence(path: Path) -> "Evidence":
    """Evidence by itself, or as part of an earlier verdict's record (`judged`)."""
    from pipelines.promotion.evidence import Evidence

    try:
        record = json.loads(path.read_text())
        return Evidence.from_record(record.get("evidence", record) if isinstance(record, dict) else record)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no evidence ({error}). Leave --evidence out to measure it.") from error


def _measured(
    args: argparse.Namespace,
    registry: "Registry",
    name: str,
    challenger: "Version",
    champion: "Version | None",
    number: int,
) -> "Evidence":
    """A look at the challenger, fetched from the registry, as the champion is."""
    from pipelines.promotion.attempt import attempt
    from pipelines.promotion.names import CHALLENGER, CHAMPION

    fetched = {CHALLENGER: challenger} | ({} if champion is None else {CHAMPION: champion})
    bundles = {who: args.output / who for who in fetched}
    for who, version in fetched.items():
        registry.fetch(name, version.version, bundles[who])
    return attempt(args, args.predictor, bundles, number)


if __name__ == "__main__":
    from pipelines.cli import main

    main(["promote", *sys.argv[1:]])
