"""The gate's verdict: passed, refused, or inconclusive, by every check, with what this evidence could have shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

VERSION = 2
PASSED, REFUSED, INCONCLUSIVE = "passed", "refused", "inconclusive"
EXHAUSTED = "documents exhausted"
VERDICT = "verdict.json"
CHALLENGER, CHAMPION = "challenger", "champion"  # aliases in the registry, and arms of a trial
RESERVE = "reserve"  # the split that further looks open


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
class Verdict:
    """On a challenger: any check that refuses refuses, and all must pass to pass."""

    checks: tuple[Check, ...]
    look: int
    looks: int  # planned
    level: float | None  # one-sided, of the look; None: past the plan
    smallest_gain: float | None = None  # true one that passes as often as the gate promises; None: nothing was measured
    documents_needed: int | None = None  # for the estimated gain to pass as often; None: no number, or none needed
    documents_left: int = 0  # in the reserve
    static_slices: tuple[str, ...] = ()  # not judged, for too few documents: keep static drafting there

    @property
    def outcome(self) -> str:
        """The worst of the checks."""
        found = {check.outcome for check in self.checks}
        return next(outcome for outcome in (REFUSED, INCONCLUSIVE, PASSED) if outcome in found)

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED

    @property
    def exhausted(self) -> bool:
        """Whether it is inconclusive, and a check says that no document is left to look at."""
        return self.outcome == INCONCLUSIVE and any(check.found.startswith(EXHAUSTED) for check in self.checks)

    def to_record(self) -> dict[str, Any]:
        """As JSON."""
        said = {"version": VERSION, "verdict": self.outcome, "passed": self.passed, "exhausted": self.exhausted}
        checks = [asdict(check) | {"passed": check.passed} for check in self.checks]
        return asdict(self) | said | {"checks": checks}


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
    level = "" if record["level"] is None else f", one-sided level {record['level']:.2%}"
    name = f"{evidence['pair']}-{evidence['predictor']} ({evidence['bundle_sha256'][:12]})"
    outcome = f"{record['verdict']}: {EXHAUSTED}" if record["exhausted"] else record["verdict"]
    documents, small = f"{len(evidence['documents'])} documents", record["static_slices"]
    unjudged = f"; not judged: {', '.join(small)}; keep static drafting there" if small else ""
    return [
        f"{name}: {outcome} at look {record['look']} of {record['looks']} ({documents}{level})",
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
        text += f"; the estimated gain would with {record['documents_needed']} documents"
    return f"{text}; {record['documents_left']} documents left in the reserve"
