"""What earlier commands left of a version, and what may still follow: evidence in a file, looks in the registry.

Looks are the gate's records on a version (`Champions.verdicts`). A look counts once it was measured. Of many measurements of one
look, or judged by many bounds, one would pass by chance.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.measuring.provenance import MEASURED_CODE, source_hash
from pipelines.promotion.champions import Version
from pipelines.promotion.evidence import Evidence
from pipelines.promotion.plan import Bounds
from pipelines.promotion.verdict import EXHAUSTED, REFUSED

Record = dict[str, Any]


def read_evidence(path: Path) -> Evidence:
    """Evidence by itself, or as part of an earlier verdict's record (`judged`)."""
    try:
        record = json.loads(path.read_text())
        return Evidence.from_record(record.get("evidence", record) if isinstance(record, dict) else record)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no evidence ({error}). Leave --evidence out to measure it.") from error


def evidence_on(path: Path, challenger: Version, over: str | None) -> Evidence | None:
    """What was measured of the challenger over the champion of content ``over``, if that is what the file holds."""
    try:
        found = read_evidence(path)
    except ValueError:  # none, or another version's: to be measured
        return None
    fits = (found.bundle_sha256, found.champion, found.problem) == (challenger.sha256, over, None)
    return found if fits else None


def require_match(evidence: Evidence, who: tuple[str, str], challenger: Version, over: str | None, device: str) -> None:
    """`ValueError` unless the evidence is on the challenger of ``who`` (pair and predictor), over the champion of content
    ``over``, and from this machine, whose slug is ``device``; evidence that does not say where it is from is taken."""
    if (evidence.pair, evidence.predictor) != who:
        raise ValueError(
            f"the evidence is on {evidence.pair}-{evidence.predictor}, and the challenger is {'-'.join(who)}. Measure again."
        )
    if evidence.bundle_sha256 != challenger.sha256:
        raise ValueError(
            f"the evidence is on content {evidence.bundle_sha256[:12]}, and the challenger, version {challenger.version}, is "
            f"{challenger.sha256[:12]}. Measure again."
        )
    if evidence.champion != over:
        found = "no champion" if evidence.champion is None else f"champion {evidence.champion[:12]}"
        raise ValueError(f"the evidence compares with {found}, and the champion is another. Measure again.")
    there = evidence.origin.get("device", {}).get("slug", device)
    if there != device:
        raise ValueError(
            f"the evidence is from machine {there}, and this is {device}. Measure here, or name that machine's description with "
            "--device."
        )


def other_code(evidence: Evidence) -> str | None:
    """A warning if other code measured it than is here."""
    here = source_hash(MEASURED_CODE)
    there = evidence.origin.get("code_sha256", here)
    return None if there == here else f"warning: measured by other code ({there[:12]}) than is here ({here[:12]})"


def looks_among(records: list[Record]) -> list[Record]:
    """Records for which something was measured."""
    return [record for record in records if record["smallest_gain"] is not None]


def next_look(earlier: list[Record], name: str, version: str, planned: int) -> int:
    """The number of the next look after the kept verdicts. `ValueError` after a refusal, which stands, and after the last
    ``planned`` look."""
    looks = looks_among(earlier)
    if looks and looks[-1]["verdict"] == REFUSED:
        raise ValueError(
            f"{name} version {version} was refused at look {looks[-1]['look']}, and more looks would not change what is "
            "known. Register another bundle, or promote this one with --force."
        )
    number = max((int(record["look"]) for record in looks), default=0) + 1
    if number > planned:
        raise ValueError(
            f"{EXHAUSTED}: the plan has no further look at {name} version {version}, all {planned} were taken. Register another "
            "bundle, or promote this one with --force."
        )
    return number


def require_new(record: Record, earlier: list[Record]) -> None:
    """`ValueError` for a second measurement of a look that was taken: only the first one counts."""
    for kept in looks_among(earlier):
        if kept["look"] >= record["look"] and kept["evidence_sha256"] != record["evidence_sha256"]:
            raise ValueError(
                f"look {record['look']} was taken already, by other evidence. Of many measurements one passes by chance: "
                "measure the next look (leave --evidence out)."
            )


def require_same_bounds(bounds: Bounds, earlier: list[Record]) -> None:
    """`ValueError` if an earlier look was judged by other bounds."""
    here = json.loads(json.dumps(asdict(bounds)))
    for kept in looks_among(earlier):
        for key, value in kept["bounds"].items():
            if here.get(key) != value:
                raise ValueError(
                    f"promotion.{key} was {value} at look {kept['look']}, and is {here.get(key)} now: bounds are fixed before "
                    "anything is measured. Put it back, register another bundle, or say --force."
                )
