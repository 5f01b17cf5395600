"""The promotion gate: a pure function from evidence to a verdict.

    contract      the bundle can be read, was made for the pair that was measured, keeps the target's distribution, and runs on
                  the wall's clock
    exactness     every exactness check of each of its decoders is green, and there is one
    calibration   its calibration error is within the bound, or there is a stated reason why it has none (settings alone)
    untrained     no document of the evidence was trained on, and there are enough documents
    gain          over the champion, plain decoding and every static chain: the lower bound at the look's level lies above the
                  margin. All must hold, so that no choice among rivals costs any error (intersection-union)
    guardrail     over the champion, or the static chain that came closest: no sampling setting and no slice loses more than the
                  guardrail, by a one-sided 95 % bound. A slice with too few documents is not judged, and named

A gain is refused only if the promised one is ruled out, or all documents were used and would have shown it; a guardrail if the
95 % bound from above lies below it, or at the last look the estimate does. Source of intersection-union: Berger, Technometrics
24, 1982.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pipelines.gate.evidence.gain import Estimate
from pipelines.gate.plan import Bounds
from pipelines.gate.trial_evidence import Evidence
from pipelines.gate.verdict import EXHAUSTED, INCONCLUSIVE, PASSED, REFUSED, Check, Verdict
from pipelines.outputs import digest

FEW = "fewer than 2 documents", "2 documents or more at every setting"  # found, and wanted


def judge(evidence: Evidence, bounds: Bounds) -> Verdict:
    """The gate's verdict."""
    wanted = "a lossless bundle that serves this pair in real time"
    checks = [Check("contract", PASSED if evidence.problem is None else REFUSED, evidence.problem or "valid", wanted)]
    if evidence.problem is None:
        checks += [_exactness(evidence), _calibration(evidence, bounds), _untrained(evidence, bounds)]
        checks += [*_gains(evidence, bounds), *_guardrails(evidence, bounds)]
    level = bounds.level(evidence.look)
    closest = min(evidence.gains.values(), key=lambda one: one.value, default=None)
    asked = bounds.level(min(evidence.look, len(bounds.looks))) or bounds.alpha
    return Verdict(
        tuple(checks),
        evidence.look,
        len(bounds.looks),
        level,
        closest.detectable(asked, bounds.margin, bounds.power) if closest else None,
        closest.documents_needed(asked, bounds.margin, bounds.power) if closest else None,
        evidence.documents_left,
        tuple(name for name, one in evidence.slices.items() if not one.judged),
    )


def judged(evidence: Evidence, bounds: Bounds) -> dict[str, Any]:
    """The verdict with what it rests on, as JSON."""
    found = {"bounds": asdict(bounds), "evidence": asdict(evidence), "evidence_sha256": fingerprint(evidence)}
    return judge(evidence, bounds).to_record() | found


def fingerprint(evidence: Evidence) -> str:
    """By which one measurement is known again."""
    return digest(asdict(evidence))


def _exactness(evidence: Evidence) -> Check:
    red = sorted(name for name, green in evidence.exactness.items() if not green)
    found = f"not green: {', '.join(red)}" if red else f"{len(evidence.exactness)} checks green"
    outcome = PASSED if evidence.exactness and not red else REFUSED
    return Check("exactness", outcome, found, "at least one check, and all green")


def _calibration(evidence: Evidence, bounds: Bounds) -> Check:
    error, wanted = evidence.calibration_error, f"at most {bounds.calibration_error:g}"
    if error is None:
        outcome = PASSED if evidence.exemption is not None else REFUSED
        return Check("calibration", outcome, evidence.exemption or "unknown", wanted)
    return Check("calibration", PASSED if error <= bounds.calibration_error else REFUSED, f"error {error:.3f}", wanted)


def _untrained(evidence: Evidence, bounds: Bounds) -> Check:
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


def _gains(evidence: Evidence, bounds: Bounds) -> Iterator[Check]:
    if evidence.origin.get("capped"):
        yield Check("gain", INCONCLUSIVE, "out of time (max_minutes)", "a trial of all prompts")
    if evidence.unknown_rivals:
        yield Check("gain", REFUSED, f"unknown over {', '.join(evidence.unknown_rivals)}", "a gain over every rival")
    for name, one in evidence.gains.items():
        yield _gain(name, one, evidence, bounds)
    for name in evidence.few_rivals:
        yield Check(f"gain over {name}", INCONCLUSIVE, *FEW)


def _gain(name: str, one: Estimate, evidence: Evidence, bounds: Bounds) -> Check:
    level, more = bounds.level(evidence.look), _more(evidence, bounds)
    what, known = f"gain over {name}", f"{one.gain:+.1%} ({one.basis})"
    if level is None:
        return Check(
            what, INCONCLUSIVE, f"{EXHAUSTED}: look {evidence.look} is past the plan, {known}", "a planned look"
        )
    found = f"{known}, at least {one.low(level):+.1%}"
    wanted = f"a lower bound above {bounds.margin:.1%} at level {level:.2%}"
    if one.low(level) > bounds.margin:
        return Check(what, PASSED, found, wanted)
    if one.high() < bounds.promised:
        return Check(what, REFUSED, f"{found}, at most {one.high():+.1%}", wanted)
    if more:
        return Check(what, INCONCLUSIVE, found, wanted)
    if one.detectable(level, bounds.margin, bounds.power) <= bounds.promised:
        return Check(what, REFUSED, f"{found}, with documents enough for {bounds.promised:+.1%}", wanted)
    return Check(what, INCONCLUSIVE, f"{EXHAUSTED}: {found}", wanted)


def _guardrails(evidence: Evidence, bounds: Bounds) -> Iterator[Check]:
    judged = {name: one for name, one in evidence.slices.items() if one.judged}
    settings = (*evidence.settings, *evidence.few_settings)
    for what, some in (("setting", settings), ("slice", tuple(judged))):
        if not some:
            yield Check(f"guardrail {what}s", INCONCLUSIVE, f"no {what} known", f"every {what} known")
    for name in evidence.few_settings:
        yield Check(f"guardrail {name}", INCONCLUSIVE, *FEW)
    for name, one in evidence.settings.items():
        yield _guardrail(name, one.gain, one.low(), one.high(), evidence, bounds)
    for name, part in judged.items():
        assert part.value is not None and part.low is not None and part.high is not None, "a judged slice has bounds"
        yield _guardrail(name, part.value, part.low, part.high, evidence, bounds)


def _guardrail(name: str, value: float, low: float, high: float, evidence: Evidence, bounds: Bounds) -> Check:
    found = f"{value:+.1%} over {evidence.reference}, at least {low:+.1%}, at most {high:+.1%}"
    wanted = f"a lower bound above {-bounds.guardrail:.1%}"
    if low > -bounds.guardrail:
        return Check(f"guardrail {name}", PASSED, found, wanted)
    more = _more(evidence, bounds)
    if high < -bounds.guardrail or (not more and value < -bounds.guardrail):
        return Check(f"guardrail {name}", REFUSED, found, wanted)
    return Check(f"guardrail {name}", INCONCLUSIVE, found if more else f"{EXHAUSTED}: {found}", wanted)


def _more(evidence: Evidence, bounds: Bounds) -> bool:
    """Whether another look is planned, and has documents."""
    return evidence.look < len(bounds.looks) and evidence.documents_left > 0
