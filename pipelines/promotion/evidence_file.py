"""Evidence that an earlier command left in a file, and whether it is on what shall be promoted."""

import json
from pathlib import Path

from pipelines.measuring.bench import MEASURED_CODE
from pipelines.measuring.provenance import source_hash
from pipelines.promotion.champions import Version
from pipelines.promotion.evidence import Evidence


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
    """`ValueError` unless the evidence is on the challenger, over the champion, and from this machine.

    Parameters
    ----------
    who
        Pair and predictor.
    over
        Content hash of the champion.
    device
        Slug of this machine; evidence that does not say where it is from is taken.
    """
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


def other_code(evidence: Evidence) -> list[str]:
    """A warning if other code measured it than is here."""
    here = source_hash(MEASURED_CODE)
    there = evidence.origin.get("code_sha256", here)
    return [] if there == here else [f"warning: measured by other code ({there[:12]}) than is here ({here[:12]})"]
