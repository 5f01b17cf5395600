"""Promote a registered bundle to champion, if the gate lets it pass.

The version under alias ``challenger`` is timed against the champion, if there is one, plain decoding and static chains (minutes;
an interrupted trial goes on where it stopped). Without a champion, what stage ``trial`` found of this very bundle is its first
trial. The gate's verdict is printed in short, written in full to the output folder, and kept as a tag of the version before
anything else is done: a trial counts, with ``--dry-run``, too. Refused and inconclusive end with exit code 1 and change nothing
else. After an inconclusive verdict the next call tries the bundle on documents of the reserve, too; a refusal stands; a pass that
was not yet acted on is not measured again. ``--evidence`` judges an earlier trial's file again.

    draftwright promote --pair smollm2 --predictor hrad
    draftwright promote --pair smollm2 --predictor hrad --force "outage of the old one"
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.gate.evidence import GateEvidence, evidence_on, other_code, read_evidence, require_match
from pipelines.gate.plan import Record, load_plan, require_new, require_same_bounds, reserve_opens, trials_among
from pipelines.gate.verdict import CHALLENGER, CHAMPION, PASSED, VERDICT, fingerprint, judged, lines, reasons
from pipelines.outputs import write_json
from pipelines.parameters import add_pair_arguments
from pipelines.places import add_place_arguments, fill_in, read_device
from pipelines.registry.champions import Champions, Version
from pipelines.registry.versions import Registry
from pipelines.terminal import LINES, add_json_argument, brief, recording

PLACES = {
    "pair_folder": "pair",
    "prompts": "prompts",
    "latency": "latency",
    "trials": "trials",
    "tuning": "tuning",
    "texts": "traces/texts",
    "output": "promotion",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_arguments(parser)
    parser.add_argument("--predictor", required=True, help="name of the bundle (registered as PAIR-PREDICTOR)")
    add_place_arguments(parser, PLACES)
    parser.add_argument("--evidence", type=Path, help="judge this evidence instead of measuring it")
    parser.add_argument(
        "--force",
        type=_reason,
        metavar="REASON",
        help="promote even if it does not pass, unless the bundle cannot be tried; the reason is recorded",
    )
    parser.add_argument("--dry-run", action="store_true", help="measure and judge only; a measured trial counts")
    add_json_argument(parser)


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("say why: the reason is recorded")
    return text.strip()


def run(args: argparse.Namespace) -> None:
    with recording(args.json) as show:
        _run(args, show)


def _run(args: argparse.Namespace, show: Callable[[Any], None]) -> None:
    fill_in(args, PLACES)
    slug = read_device(args.device)["slug"]
    _, bounds = load_plan(args.pair, args.params)
    registry = Registry()
    champions = Champions(registry.client, f"{args.pair}-{args.predictor}")
    if not args.dry_run:
        champions.mend()
    challenger, champion = champions.challenger(), champions.champion()
    if challenger is None:
        raise ValueError(f"{champions.name} has no challenger. Register a bundle first (draftwright register).")
    if champion is not None and champion.sha256 == challenger.sha256:
        show(next(reversed(champions.verdicts(champion.version)), None))
        print(f"{champions.name} version {champion.version} is the champion already")
        return
    args.output = args.output / f"{args.predictor}-{challenger.version}"
    earlier = champions.verdicts(challenger.version)
    if not args.force:
        require_same_bounds(bounds, earlier)
    over = None if champion is None else champion.sha256
    evidence, is_trial = _evidence(args, registry, champions.name, challenger, champion, earlier)
    compared = None if args.evidence is None and evidence.champion is None else over  # its files are gone
    require_match(evidence, (args.pair, args.predictor), challenger, compared, slug)
    record = judged(evidence, bounds)
    require_new(record, earlier)
    write_json(args.output / VERDICT, record)
    kept = {name: value for name, value in record.items() if name != "evidence"}
    is_trial = is_trial and evidence.problem is None
    if is_trial or not args.dry_run:
        champions.keep(challenger.version, kept)
    show(record)
    print(brief(lines(record), LINES - 1))
    warning = other_code(evidence)
    if warning is not None:
        print(warning, file=sys.stderr)
    _act(args, champions, challenger, over, record, "the trial counts, nothing else" if is_trial else "nothing")


def _act(
    args: argparse.Namespace, champions: Champions, challenger: Version, over: str | None, record: Record, changed: str
) -> None:
    """Promote, or say why not; ``changed``: what has been so far."""
    stopped = record["evidence"]["problem"] is not None or (not record["passed"] and not args.force)
    why = reasons(record)
    outcome = record["verdict"]
    if args.dry_run and stopped:
        raise ValueError(f"dry run: would be {outcome}: {why}; {changed} was changed ({args.output})")
    if args.dry_run:
        print(f"dry run: would pass{'' if record['passed'] else ', forced'}; {changed} was changed ({args.output})")
        return
    if stopped:
        raise ValueError(f"{champions.name} version {challenger.version} is {outcome}: {why}")
    event = champions.promote(challenger.version, over, record, None if record["passed"] else args.force)
    forced = f", forced: {event.forced}" if event.forced else ""
    print(f"{champions.name} version {event.version} is champion{forced}")


def _evidence(
    args: argparse.Namespace,
    registry: Registry,
    name: str,
    challenger: Version,
    champion: Version | None,
    earlier: list[Record],
) -> tuple[GateEvidence, bool]:
    """Evidence to judge, and whether it is a new trial: what is given; that of a kept trial which can still be promoted by (one
    that passed, or any by force); what stage ``trial`` found of this bundle; or measured now, with bundles fetched from the
    registry."""
    if args.evidence is not None:
        return read_evidence(args.evidence), False
    over = None if champion is None else champion.sha256
    verdicts = {kept["evidence_sha256"]: kept["verdict"] for kept in trials_among(earlier)}
    found = evidence_on(args.output / VERDICT, challenger, over)
    verdict = None if found is None else verdicts.get(fingerprint(found))
    if found is not None and (verdict == PASSED or (verdict is not None and args.force)):
        return found, False
    reserve = reserve_opens(earlier, name, challenger.version)
    place = args.trials / args.predictor / read_device(args.device)["slug"] / VERDICT
    tried = None if reserve or champion is not None else evidence_on(place, challenger, None)
    if tried is not None:
        return tried, True
    fetched = {CHALLENGER: challenger} | ({} if champion is None else {CHAMPION: champion})
    bundles = {who: args.output / who for who in fetched}
    for who, version in fetched.items():
        try:
            registry.fetch(name, version.version, bundles[who])
        except ValueError as error:
            if who != CHAMPION or not args.force:
                raise
            print(f"warning: not compared with the champion: {error}", file=sys.stderr)
            del bundles[who]
    from pipelines.gate.trial import attempt  # it loads models, which evidence at hand needs not

    return attempt(args, args.predictor, bundles, reserve), True
