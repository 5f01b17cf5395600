"""What is known of a challenger: all that the gate reads, from the tables of a trial, or from the file of an earlier one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.gate.evidence.gain import Estimate, SliceGain, gain, slice_gains
from pipelines.gate.evidence.ledger import Replayed, Row, TimedBlocks, TooFewDocumentsError
from pipelines.gate.plan import Bounds
from pipelines.gate.verdict import CHALLENGER, CHAMPION
from pipelines.measuring.names import CHAIN, PLAIN, chain_gamma
from pipelines.measuring.provenance import MEASURED_CODE, of_target_alone, source_hash
from predictors.config import parse_config

if TYPE_CHECKING:
    from pipelines.registry.champions import Version

VERSION = 2


@dataclass(frozen=True)
class Comparison:
    """Gains of one arm."""

    gains: Mapping[str, Estimate]  # over the champion, plain decoding, every static chain
    reference: str | None  # what guardrails compare with: the champion, or the static chain that came closest
    settings: Mapping[str, Estimate]  # gains over the reference, by sampling setting
    slices: Mapping[str, SliceGain]  # the same, pooled by slice
    documents: tuple[str, ...]  # ids of those measured
    few_rivals: tuple[str, ...] = ()  # timed on fewer than two documents, as few_settings: no gain is known there
    few_settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence(Comparison):
    """What is known of a challenger, by content hashes of its bundle and of the ``champion`` beside it, if there was one."""

    pair: str
    predictor: str
    bundle_sha256: str
    champion: str | None
    problem: str | None  # why the bundle cannot be tried, so that nothing else is known; None: it can
    exactness: Mapping[str, bool]  # green or not, by name of the check
    calibration_error: float | None  # on documents not trained on; None: unknown, which only an exemption excuses
    trained_documents: tuple[str, ...]  # ids of those that training or calibration read
    look: int = 1
    documents_left: int = 0  # of the reserve, which the look left unopened
    origin: Mapping[str, Any] = field(default_factory=dict)  # device, commit, parameters; capped: time ran out
    exemption: str | None = None  # why there is no calibration error to know; None: there must be one
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, got {self.version}: another draftwright wrote it.")
        if self.look < 1 or self.documents_left < 0:
            raise ValueError(f"look must be >= 1 and documents_left >= 0, got {self.look} and {self.documents_left}.")
        rivals = (*self.gains, *self.few_rivals)
        if self.problem is None and self.reference not in rivals:
            raise ValueError(f"reference must be one of the rivals {', '.join(rivals)}, got {self.reference!r}.")
        for name, green in self.exactness.items():
            if not isinstance(green, bool):
                raise ValueError(f"exactness check {name!r} must be true or false, got {green!r}.")

    @property
    def unknown_rivals(self) -> list[str]:
        """Kinds of rivals that were not timed beside it."""
        timed = {*self.gains, *self.few_rivals}
        known = {
            CHAMPION: self.champion is None or CHAMPION in timed,
            PLAIN: PLAIN in timed,
            f"a static {CHAIN}": of_target_alone(self.origin) or any(chain_gamma(name) is not None for name in timed),
        }
        return [name for name, there in known.items() if not there]


def compared(
    decodes: Iterable[Row],
    bounds: Bounds,
    champion: bool = False,
    mix: Mapping[str, float] | None = None,
    replayed: Replayed | None = None,
) -> Comparison:
    """What timed ``decodes`` and replay of their texts say of the arm `CHALLENGER` over plain decoding, every static chain and,
    if there is a ``champion``, the arm `CHAMPION`. Without static chains the reference is plain decoding, and the gate refuses
    unless the pair has no draft. ``mix``: documents by slice that gains are weighed by, by default those of the table; a slice
    of it that was not timed is not judged."""
    blocks = TimedBlocks.of(decodes)
    static = [name for name in blocks.arms if blocks.families[name] == CHAIN]
    rivals = [PLAIN, *static, *([CHAMPION] if champion else [])]
    known = {name: _gain(blocks, CHALLENGER, name, mix, replayed) for name in rivals}
    gains = {name: one for name, one in known.items() if one is not None}
    judged = [name for name in static if name in gains]
    closest = min(judged, key=lambda name: gains[name].value, default=next(iter(static), PLAIN))
    reference = CHAMPION if champion else closest
    both_B = blocks.shared(CHALLENGER, reference)
    of_setting = {
        name: _gain(blocks, CHALLENGER, reference, mix, replayed, only_setting=name)
        for name in sorted(set(blocks.setting_B[both_B].tolist()))
    }
    untimed = dict.fromkeys(mix or (), SliceGain(None, None, None, 0, False))
    slices = slice_gains(blocks, CHALLENGER, reference, bounds.slice_documents, bounds.slice_spread, replayed)
    return Comparison(
        gains=gains,
        reference=reference,
        settings={name: one for name, one in of_setting.items() if one is not None},
        slices=untimed | slices,
        documents=tuple(sorted(set(blocks.document_B[both_B].tolist()))),
        few_rivals=tuple(name for name in known if name not in gains),
        few_settings=tuple(name for name, one in of_setting.items() if one is None),
    )


def _gain(blocks: TimedBlocks, *arguments: Any, **options: Any) -> Estimate | None:
    """As `gain`; ``None``: of too few documents."""
    try:
        return gain(blocks, *arguments, **options)
    except TooFewDocumentsError:
        return None


def read_evidence(path: Path) -> Evidence:
    """Evidence by itself, or as part of an earlier verdict's record (`judged`)."""
    try:
        record = json.loads(path.read_text())
        record = record.get("evidence", record) if isinstance(record, dict) else record
        return parse_config(Evidence, record, "evidence")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds no evidence ({error}). Leave --evidence out to measure it.") from error


def evidence_on(path: Path, challenger: "Version", over: str | None) -> Evidence | None:
    """What was measured of the challenger over the champion of content ``over``, if that is what the file holds."""
    try:
        found = read_evidence(path)
    except ValueError:  # none, or another version's: to be measured
        return None
    fits = (found.bundle_sha256, found.champion, found.problem) == (challenger.sha256, over, None)
    return found if fits else None


def require_match(
    evidence: Evidence, who: tuple[str, str], challenger: "Version", over: str | None, device: str
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


def other_code(evidence: Evidence) -> str | None:
    """A warning if other code measured it than is here."""
    here = source_hash(MEASURED_CODE)
    there = evidence.origin.get("code_sha256", here)
    return None if there == here else f"warning: measured by other code ({there[:12]}) than is here ({here[:12]})"
