"""The promotion gate: a pure function from evidence to a verdict.

A bundle passes only if

    contract       it can be read, was made for the pair that was measured, keeps the target's law, and runs on the wall's clock
    exactness      every exactness check of each of its decoders is green, and there is one
    calibration    its calibration error is within the bound, or there is a stated reason why it has none (settings alone)
    gain           the lower end of the paired interval of its gain over the champion is above the margin; where there is none, of
                   that over the static chain that validation prompts choose, and it does not lose to the static chain that was
                   fastest in hindsight, which no choice beats. No trial that ran out of time is a gain
    slices         no sampling setting, and no slice at one, is slower than the baseline by more than the slice margin
    untrained      no document of the evidence was trained on, and there are enough documents

Every check says what it found and what it asked for, so that a refusal says why.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.promotion.names import BEST_STATIC

Interval = Mapping[str, float | None]
IN_HINDSIGHT = "the static chain that was fastest in hindsight"


@dataclass(frozen=True)
class Evidence:
    """What is known of a challenger.

    Parameters
    ----------
    pair, predictor, bundle_sha256
        Whose bundle, and which content.
    baseline
        What it was compared with: `BEST_STATIC`, or the champion's content hash.
    problem
        Why the bundle cannot be tried; ``None``: it can.
    exactness
        Green or not, by name of the check.
    calibration_error
        Of its model on documents that were not trained on; ``None``: unknown, which is only good with an ``exemption``.
    gain
        Paired gain in tokens per second over the baseline, with its interval: keys ``value``, ``low`` and ``high``.
    slices
        The same at every sampling setting (``T=0``), and in every slice at it (``T=0 prose``).
    documents, trained_documents
        Ids of the documents measured, and of those that training or calibration read.
    origin
        Where the numbers are from: device, commit, parameters; ``capped``: time ran out before all prompts were decoded.
    hindsight
        Gain over the static chain that was fastest on the measured documents, setting by setting; ``None``: not measured.
    exemption
        Why there is no calibration error to know; ``None``: there must be one.
    """

    pair: str
    predictor: str
    bundle_sha256: str
    baseline: str
    problem: str | None
    exactness: Mapping[str, bool]
    calibration_error: float | None
    gain: Interval
    slices: Mapping[str, Interval]
    documents: tuple[str, ...]
    trained_documents: tuple[str, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)
    hindsight: Interval | None = None
    exemption: str | None = None

    def __post_init__(self) -> None:
        for name, gain in {"gain": self.gain, "hindsight": self.hindsight or {}, **self.slices}.items():
            values = list(gain.values()) if isinstance(gain, Mapping) else [gain]
            if not isinstance(gain, Mapping) or not all(value is None or _is_number(value) for value in values):
                raise ValueError(f"{name} must be an interval of numbers, got {gain!r}.")
        for name, green in self.exactness.items():
            if not isinstance(green, bool):
                raise ValueError(f"exactness check {name!r} must be true or false, got {green!r}.")


@dataclass(frozen=True)
class Bounds:
    """Section ``promotion``: the least gain (its interval's lower end must lie above ``margin``), the most that a slice may lose,
    the largest calibration error, and the fewest documents."""

    margin: float = 0.0
    slice_margin: float = 0.05
    calibration_error: float = 0.08
    min_documents: int = 8

    def __post_init__(self) -> None:
        for name in ("margin", "slice_margin", "calibration_error"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")
        if self.min_documents < 1:
            raise ValueError(f"min_documents must be >= 1, got {self.min_documents}.")


@dataclass(frozen=True)
class Check:
    """One condition: what it ``found`` and ``wanted``, in words."""

    name: str
    passed: bool
    found: str
    wanted: str


@dataclass(frozen=True)
class Verdict:
    """Whether a challenger may be promoted, by every check."""

    passed: bool
    checks: tuple[Check, ...]

    @property
    def reasons(self) -> list[str]:
        """Of a refusal: every check that failed."""
        return [f"{check.name}: {check.found}, wanted {check.wanted}" for check in self.checks if not check.passed]

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        return {"passed": self.passed, "checks": [asdict(check) for check in self.checks]}


def judge(evidence: Evidence, bounds: Bounds) -> Verdict:
    """The gate's verdict. A number that is missing or not finite never passes."""
    checks = (
        Check(
            "contract",
            evidence.problem is None,
            evidence.problem or "valid",
            "a lossless bundle that serves this pair in real time",
        ),
        _exactness(evidence),
        _calibration(evidence, bounds),
        _gain(evidence, bounds),
        _slices(evidence, bounds),
        _untrained(evidence, bounds),
    )
    return Verdict(all(check.passed for check in checks), checks)


def judged(evidence: Evidence, verdict: Verdict, bounds: Bounds) -> dict[str, Any]:
    """A verdict with what it rests on, as JSON."""
    return verdict.to_record() | {"bounds": asdict(bounds), "evidence": asdict(evidence)}


def _exactness(evidence: Evidence) -> Check:
    red = sorted(name for name, green in evidence.exactness.items() if not green)
    found = f"not green: {', '.join(red)}" if red else f"{len(evidence.exactness)} checks green"
    return Check("exactness", bool(evidence.exactness) and not red, found, "at least one check, and all green")


def _calibration(evidence: Evidence, bounds: Bounds) -> Check:
    error, wanted = evidence.calibration_error, f"at most {bounds.calibration_error:g}"
    if error is None:
        return Check("calibration", evidence.exemption is not None, evidence.exemption or "unknown", wanted)
    return Check("calibration", error <= bounds.calibration_error, f"error {error:.3f}", wanted)


def _gain(evidence: Evidence, bounds: Bounds) -> Check:
    capped = bool(evidence.origin.get("capped"))
    sure = _number(evidence.gain.get("low")) > bounds.margin and not capped
    found, wanted = _shown(evidence.gain), f"lower end above {bounds.margin:.1%}"
    if capped:
        found, wanted = f"out of time (max_minutes) with {found}", f"a trial of all prompts, {wanted}"
    if evidence.baseline != BEST_STATIC:
        return Check("gain", sure, f"{found} over champion {evidence.baseline[:12]}", wanted)
    hindsight = evidence.hindsight or {}
    found += f" over {BEST_STATIC}, {_shown(hindsight)} over {IN_HINDSIGHT}"
    wanted += f", and over {IN_HINDSIGHT} not below 0"
    return Check("gain", sure and _number(hindsight.get("value")) >= 0, found, wanted)


def _slices(evidence: Evidence, bounds: Bounds) -> Check:
    wanted = f"every setting and slice known, and none slower by more than {bounds.slice_margin:.1%}"
    values = {name: _number(gain.get("value")) for name, gain in evidence.slices.items()}
    worse = [name for name, value in values.items() if not value >= -bounds.slice_margin]
    found = "; ".join(f"{name} {_shown(evidence.slices[name])}" for name in worse or values)
    return Check("slices", bool(values) and not worse, found or "no slice", wanted)


def _untrained(evidence: Evidence, bounds: Bounds) -> Check:
    documents = set(evidence.documents)
    seen = sorted(documents & set(evidence.trained_documents))
    wanted = f"at least {bounds.min_documents} documents, none of them trained on"
    if seen:
        named = ", ".join(seen[:3]) + (", …" if len(seen) > 3 else "")
        return Check("untrained", False, f"{len(seen)} of {len(documents)} documents were trained on ({named})", wanted)
    enough = len(documents) >= bounds.min_documents and bool(evidence.trained_documents)
    found = f"{len(documents)} documents" + ("" if evidence.trained_documents else ", what was trained on is unknown")
    return Check("untrained", enough, found, wanted)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else -math.inf


def _shown(gain: Interval) -> str:
    numbers = [gain.get(name) for name in ("value", "low", "high")]
    value, low, high = ("unknown" if number is None else f"{number:+.1%}" for number in numbers)
    return f"{value} ({low} to {high})"
