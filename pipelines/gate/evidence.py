"""What is known of a challenger: all that the gate reads, from the tables of a trial, or from the file of an earlier one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.measuring.gain import Estimate, TimedDecodes, TooFewDocumentsError
from pipelines.measuring.names import CHAIN, PLAIN, chain_gamma
from pipelines.measuring.provenance import MEASURED_CODE, of_target_alone, source_hash
from predictors.config import parse_config

if TYPE_CHECKING:
    from pipelines.registry.champions import Version

VERSION = 3


@dataclass(frozen=True)
class Comparison:
    """Gains of one arm; ``None``: timed on too few documents to know."""

    gains: Mapping[str, Estimate | None]  # over the champion, plain decoding, every static chain
    reference: str | None  # what guardrails compare with: the champion, or the static chain that came closest
    settings: Mapping[str, Estimate | None]  # gains over the reference, by sampling setting
    slices: Mapping[str, Estimate | None]  # the same, by slice; of those with too few documents nothing is judged
    documents: tuple[str, ...]  # ids of those that were timed

    @property
    def known(self) -> dict[str, Estimate]:
        """Gains by rival, those that are known."""
        return {name: one for name, one in self.gains.items() if one is not None}


@dataclass(frozen=True, kw_only=True)
class GateEvidence(Comparison):
    """Everything known of a challenger, by content hashes of its bundle and of the ``champion`` it was timed with, if there was
    one."""

    pair: str
    predictor: str
    bundle_sha256: str
    champion: str | None
    problem: str | None  # why the bundle cannot be tried, so that nothing else is known; None: it can
    exactness: Mapping[str, bool]  # green or not, by name of the check
    calibration_error: float | None  # on documents not trained on; None: unknown, which only an exemption excuses
    trained_documents: tuple[str, ...]  # ids of those that training or calibration read
    reserve: bool = False  # whether documents of the reserve were timed, too
    origin: Mapping[str, Any] = field(default_factory=dict)  # device, commit, parameters
    exemption: str | None = None  # why there is no calibration error to know; None: there must be one
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version}: another draftwright wrote it.")
        if self.problem is None and self.reference not in self.gains:
            raise ValueError(f"reference must be one of the rivals {', '.join(self.gains)}, got {self.reference!r}.")
        for name, green in self.exactness.items():
            if not isinstance(green, bool):
                raise ValueError(f"exactness check {name!r} must be true or false, got {green!r}.")

    @property
    def unknown_rivals(self) -> list[str]:
        """Kinds of rivals that were not timed with it."""
        known = {
            CHAMPION: self.champion is None or CHAMPION in self.gains,
            PLAIN: PLAIN in self.gains,
            f"a static {CHAIN}": of_target_alone(self.origin)
            or any(chain_gamma(one) is not None for one in self.gains),
        }
        return [name for name, there in known.items() if not there]


def compared(timed: TimedDecodes, bounds: Bounds, champion: bool = False) -> Comparison:
    """Compare the arm `CHALLENGER` as it was ``timed`` with plain decoding, every static chain and, if there is a ``champion``,
    the arm `CHAMPION`. Without static chains the reference is plain decoding, and the gate refuses unless the pair has no
    draft."""

    def gain(rival: str, **only: Any) -> Estimate | None:
        try:
            return timed.gain(CHALLENGER, rival, **only)
        except TooFewDocumentsError:
            return None

    static = [name for name in timed.arms if chain_gamma(name) is not None]
    gains = {name: gain(name) for name in [PLAIN, *static, *([CHAMPION] if champion else [])]}
    judged = {name: one.value for name in static if (one := gains[name]) is not None}
    reference = CHAMPION if champion else min(judged, key=judged.__getitem__, default=next(iter(static), PLAIN))
    settings, documents = timed.shared(CHALLENGER, reference)
    enough = {name: timed.documents_of(CHALLENGER, reference, name) >= bounds.slice_documents for name in timed.slices}
    return Comparison(
        gains=gains,
        reference=reference,
        settings={name: gain(reference, settings=[name]) for name in settings},
        slices={name: gain(reference, only_slice=name) if there else None for name, there in enough.items()},
        documents=tuple(documents),
    )


def read_evidence(path: Path) -> GateEvidence:
    """Evidence by itself, or as part of an earlier verdict's record (`judged`)."""
    try:
        record = json.loads(path.read_text())
        record = record.get("evidence", record) if isinstance(record, dict) else record
        return parse_config(GateEvidence, record, "evidence")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no evidence ({error}). Leave --evidence out to measure it.") from error


def evidence_on(path: Path, challenger: "Version", over: str | None) -> GateEvidence | None:
    """Read evidence on the challenger over the champion of content ``over``; None if the file holds none."""
    try:
        found = read_evidence(path)
    except ValueError:  # none, or another version's: to be measured
        return None
    fits = (found.bundle_sha256, found.champion, found.problem) == (challenger.sha256, over, None)
    return found if fits else None


def require_match(
    evidence: GateEvidence, who: tuple[str, str], challenger: "Version", over: str | None, device: str
) -> None:
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


def other_code(evidence: GateEvidence) -> str | None:
    """A warning if other code measured it than is here."""
    here = source_hash(MEASURED_CODE)
    there = evidence.origin.get("code_sha256", here)
    return None if there == here else f"warning: measured by other code ({there[:12]}) than is here ({here[:12]})"
