"""The promotion gate: a pure function from evidence to a verdict, and its verdicts in words.

    contract      the bundle can be read, was made for the pair that was measured, keeps the target's distribution, and runs on
                  the wall's clock
    exactness     every exactness check of each of its decoders is green, and there is one
    calibration   its calibration error is within the bound, or there is a stated reason why it has none (settings alone)
    untrained     no document of the evidence was trained on, and there are enough documents
    gain          over the champion, plain decoding and every static chain: the lower bound lies above the margin. All must hold,
                  so that no choice among rivals costs any error (intersection-union)
    guardrail     over the champion, or the static chain that came closest: no sampling setting and no slice loses more than the
                  guardrail, by a one-sided 95 % bound. A slice with too few documents is not judged, and named

A gain is refused only if the promised one is ruled out, a guardrail if the 95 % bound from above lies below it; all else is
inconclusive. Source of intersection-union: Berger, Technometrics 24, 1982.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pipelines.outputs import digest

if TYPE_CHECKING:
    from pipelines.gate.evidence import GateEvidence
    from pipelines.gate.plan import Bounds
    from pipelines.measuring.gain import Estimate

VERSION = 3
PASSED, REFUSED, INCONCLUSIVE = "passed", "refused", "inconclusive"
VERDICT = "verdict.json"
CHALLENGER, CHAMPION = "challenger", "champion"  # aliases in the registry, and arms of a trial
RESERVE = "reserve"  # the split that a trial after an inconclusive one opens
FEW = "fewer than 2 documents", "2 documents or more at every setting"  # found, and wanted


@dataclass(frozen=True)
class Check:
    """One condition: its ``outcome``, what it ``found`` and ``wanted``, in words."""

    name: str
    outcome: str
    found: str
    wanted: str

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED


@dataclass(frozen=True)
class GateVerdict:
    """The gate's verdict on a challenger: any check that refuses refuses, and all must pass to pass."""

    checks: tuple[Check, ...]
    level: float  # one-sided, of the gains
    reserve: bool = False  # whether the reserve's documents were timed, too
    smallest_gain: float | None = None  # true one that passes as often as the gate promises; None: nothing was measured
    documents_needed: int | None = None  # for the estimated gain to pass as often; None: no number, or none needed
    static_slices: tuple[str, ...] = ()  # not judged, for too few documents: keep static drafting there

    @property
    def outcome(self) -> str:
        """The worst of the checks."""
        found = {check.outcome for check in self.checks}
        return next(outcome for outcome in (REFUSED, INCONCLUSIVE, PASSED) if outcome in found)

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED

    def to_record(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        said = {"version": VERSION, "verdict": self.outcome, "passed": self.passed}
        checks = [asdict(check) | {"passed": check.passed} for check in self.checks]
        return asdict(self) | said | {"checks": checks}


def judge(evidence: "GateEvidence", bounds: "Bounds") -> GateVerdict:
    """The gate's verdict."""
    wanted = "a lossless bundle that serves this pair in real time"
    checks = [Check("contract", PASSED if evidence.problem is None else REFUSED, evidence.problem or "valid", wanted)]
    if evidence.problem is None:
        checks += [_exactness(evidence), _calibration(evidence, bounds), _untrained(evidence, bounds)]
        checks += [*_gains(evidence, bounds), *_guardrails(evidence, bounds)]
    closest = min(evidence.known.values(), key=lambda one: one.value, default=None)
    asked = (bounds.alpha, bounds.margin, bounds.power)
    return GateVerdict(
        tuple(checks),
        bounds.alpha,
        evidence.reserve,
        closest.detectable(*asked) if closest else None,
        closest.documents_needed(*asked) if closest else None,
        tuple(name for name, one in evidence.slices.items() if one is None),
    )


def judged(evidence: "GateEvidence", bounds: "Bounds") -> dict[str, Any]:
    """The verdict with what it rests on, as JSON."""
    found = {"bounds": asdict(bounds), "evidence": asdict(evidence), "evidence_sha256": fingerprint(evidence)}
    return judge(evidence, bounds).to_record() | found | {"documents_sha256": digest(sorted(evidence.documents))}


def fingerprint(evidence: "GateEvidence") -> str:
    """Hash by which one measurement is known again."""
    return digest(asdict(evidence))


def _exactness(evidence: "GateEvidence") -> Check:
    red = sorted(name for name, green in evidence.exactness.items() if not green)
    found = f"not green: {', '.join(red)}" if red else f"{len(evidence.exactness)} checks green"
    outcome = PASSED if evidence.exactness and not red else REFUSED
    return Check("exactness", outcome, found, "at least one check, and all green")


def _calibration(evidence: "GateEvidence", bounds: "Bounds") -> Check:
    error, wanted = evidence.calibration_error, f"at most {bounds.calibration_error:g}"
    if error is None:
        outcome = PASSED if evidence.exemption is not None else REFUSED
        return Check("calibration", outcome, evidence.exemption or "unknown", wanted)
    return Check("calibration", PASSED if error <= bounds.calibration_error else REFUSED, f"error {error:.3f}", wanted)


def _untrained(evidence: "GateEvidence", bounds: "Bounds") -> Check:
    documents = set(evidence.documents)
    seen = sorted(documents & set(evidence.trained_documents))
    wanted = f"at least {bounds.min_documents} documents, none of them trained on"
    if seen:
        named = ", ".join(seen[:3]) + (", …" if len(seen) > 3 else "")
        found = f"{len(seen)} of {len(documents)} documents were trained on ({named})"
        return Check("untrained", REFUSED, found, wanted)
    if not evidence.trained_documents:
        return Check("untrained", REFUSED, f"{len(documents)} documents, what was trained on is unknown", wanted)
    outcome = PASSED if len(documents) >= bounds.min_documents else INCONCLUSIVE
    return Check("untrained", outcome, f"{len(documents)} documents", wanted)


def _gains(evidence: "GateEvidence", bounds: "Bounds") -> Iterator[Check]:
    if evidence.unknown_rivals:
        yield Check("gain", REFUSED, f"unknown over {', '.join(evidence.unknown_rivals)}", "a gain over every rival")
    wanted = f"a lower bound above {bounds.margin:.1%} at level {bounds.alpha:.2%}"
    for name, one in evidence.gains.items():
        if one is None:
            yield Check(f"gain over {name}", INCONCLUSIVE, *FEW)
            continue
        found = f"{one.gain:+.1%} ({one.basis}), at least {one.low(bounds.alpha):+.1%}"
        if one.low(bounds.alpha) > bounds.margin:
            yield Check(f"gain over {name}", PASSED, found, wanted)
        elif one.high() < bounds.promised:
            yield Check(f"gain over {name}", REFUSED, f"{found}, at most {one.high():+.1%}", wanted)
        else:
            yield Check(f"gain over {name}", INCONCLUSIVE, found, wanted)


def _guardrails(evidence: "GateEvidence", bounds: "Bounds") -> Iterator[Check]:
    judged = {name: one for name, one in evidence.slices.items() if one is not None}
    for what, some in (("setting", evidence.settings), ("slice", judged)):
        if not some:
            yield Check(f"guardrail {what}s", INCONCLUSIVE, f"no {what} known", f"every {what} known")
    for name, one in {**evidence.settings, **judged}.items():
        yield _guardrail(name, one, evidence, bounds)


def _guardrail(name: str, one: "Estimate | None", evidence: "GateEvidence", bounds: "Bounds") -> Check:
    if one is None:
        return Check(f"guardrail {name}", INCONCLUSIVE, *FEW)
    found = f"{one.gain:+.1%} over {evidence.reference}, at least {one.low():+.1%}, at most {one.high():+.1%}"
    wanted = f"a lower bound above {-bounds.guardrail:.1%}"
    if one.low() > -bounds.guardrail:
        return Check(f"guardrail {name}", PASSED, found, wanted)
    outcome = REFUSED if one.high() < -bounds.guardrail else INCONCLUSIVE
    return Check(f"guardrail {name}", outcome, found, wanted)


def reasons(record: Mapping[str, Any]) -> str:
    """The worst check of a record that did not pass, and how many more."""
    failed = _failed(record["checks"])
    more = [f"and {len(failed) - 1} more"] if len(failed) > 1 else []
    return "; ".join([*(f"{check['name']}: {check['found']}, wanted {check['wanted']}" for check in failed[:1]), *more])


def lines(record: Mapping[str, Any]) -> list[str]:
    """A record (`judged`) in four lines: verdict, gains, other checks, power."""
    evidence, checks = record["evidence"], record["checks"]
    gains = [check for check in checks if check["name"].startswith("gain")]
    others = [check for check in checks if check not in gains]
    name = f"{evidence['pair']}-{evidence['predictor']} ({evidence['bundle_sha256'][:12]})"
    documents, small = f"{len(evidence['documents'])} documents", record["static_slices"]
    where = (
        f"{documents}{', the reserve among them' if record['reserve'] else ''}, one-sided level {record['level']:.2%}"
    )
    unjudged = f"; not judged: {', '.join(small)}; keep static drafting there" if small else ""
    return [
        f"{name}: {record['verdict']} ({where})",
        f"gains: {_listed(gains)}{_least(evidence['gains'], gains)}",
        f"checks: {_listed(others)}{unjudged}",
        f"power: {_power(record)}",
    ]


def _failed(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What refuses first."""
    return sorted((check for check in checks if not check["passed"]), key=lambda check: check["outcome"] != REFUSED)


def _listed(checks: list[dict[str, Any]]) -> str:
    """How many passed, and what the others found."""
    failed = _failed(checks)
    found = [f"{check['name']} {check['outcome']}: {check['found']}" for check in failed]
    return "; ".join([f"{len(checks) - len(failed)} of {len(checks)} passed", *found])


def _least(known: Mapping[str, Mapping[str, Any]], gains: list[dict[str, Any]]) -> str:
    """The smallest of gains that all passed."""
    if not known or _failed(gains):
        return ""
    name = f"gain over {min(known, key=lambda rival: known[rival]['value'])}"
    return "".join(f"; {name}: {check['found']}" for check in gains if check["name"] == name)


def _power(record: Mapping[str, Any]) -> str:
    if record["smallest_gain"] is None:
        return "no gain is known"
    share = record["bounds"]["power"]
    text = f"a true gain of {record['smallest_gain']:+.1%} would pass in {share:.0%} of cases"
    if record["documents_needed"] is not None and record["verdict"] == INCONCLUSIVE:
        more = max(0, record["documents_needed"] - len(record["evidence"]["documents"]))
        text += f"; the estimated gain would with {more} more documents"
    return text
