"""Counts of served requests, and statistics of many of them: the runtime counts, a bundle's card knows recorded requests.

    accepted = accepted tokens / rounds
    residual = Σ (outcome - probability) / forecasts that came to a test            calibration error
    distance = Σ squared distance of the features from the training rows / queries
    feature i = Σ their i-th standardised coordinate / queries                      a head's are principal components

A forecast of `predictors.rounds` comes to a test where the round submitted a token there and accepted all before it; the
outcome is whether it was accepted too. Rounds count that the request's budget left whole, which is known before they begin.

Over requests i each statistic is r = Σ a_i / Σ b_i, a and b as above and below its fraction bar: by Wald's identity it does not
depend on the budget, as a mean of a_i / b_i does. Its error is the jackknife's that leaves out one of D documents at a time (B =
Σ b), and its degrees of freedom are those of as many documents of equal weight:

    e_d = Σ_{i in d} (a_i - r b_i)        error² = (D - 1) / D · Σ_d (e_d / (B - b_d))²        freedom = (Σ b_d²)² / Σ b_d⁴ - 1
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import fmean
from typing import Any

from predictors.config import parse_config
from predictors.rounds import Forecast

KEY = "reference"  # in a bundle's card
OLD = "the bundle was exported before there were references. Export it again (dvc repro)"
ELSEWHERE = "it has some where the bundle is calibrated and texts are recorded (traces.texts.temperatures)"
ACCEPTED, RESIDUAL, DISTANCE, FEATURE = "accepted", "residual", "distance", "feature"


@dataclass
class RequestCounts:
    """Counts of one request: what its statistics are made of."""

    budget: int  # new tokens
    depth: int  # tokens in a row that its rounds may submit
    emitted: int = 1  # with the prefill's token from the start
    rounds: int = 0  # after it that the budget left whole; all that follows is of them
    submitted: int = 0
    looked_up: int = 0
    accepted: int = 0
    questions: int = 0
    distance: float = 0.0
    sketch: tuple[float, ...] = ()
    tested: int = 0
    probability: float = 0.0
    outcomes: int = 0

    def add(
        self, emitted: int, submitted: int, accepted: int, forecasts: Iterable[Forecast], looked_up: int = 0
    ) -> None:
        """Count a round: ``submitted`` levels, ``looked_up`` of them found by a lookup; ``accepted`` tokens, a branch point's hit
        among them."""
        left, self.emitted = self.budget - self.emitted - 1, self.emitted + emitted
        if left < self.depth:
            return
        self.rounds += 1
        self.submitted += submitted
        self.looked_up += looked_up
        self.accepted += accepted
        passed = min(accepted, submitted)
        for place, probability, distance, sketch in forecasts:
            self.questions += 1
            self.distance += distance
            self.sketch = tuple(map(add, self.sketch, sketch)) if self.sketch else sketch
            if place < submitted and place <= passed:
                self.tested += 1
                self.probability += probability
                self.outcomes += place < passed


def fractions_of(counts: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return what is above and below the fraction bar of every statistic that a request's ``counts``, named as in
    `RequestCounts`, contribute to."""
    fractions = {
        ACCEPTED: (counts["accepted"], counts["rounds"]),
        RESIDUAL: (counts["outcomes"] - counts["probability"], counts["tested"]),
        DISTANCE: (counts["distance"], counts["questions"]),
    }
    fractions |= {f"{FEATURE} {i}": (total, counts["questions"]) for i, total in enumerate(counts["sketch"])}
    return {
        name: (above, below)
        for name, (above, below) in fractions.items()
        if below > 0 and math.isfinite(above) and math.isfinite(below)
    }


@dataclass(frozen=True)
class AlarmLevel:
    """Level of a statistic over requests, with its standard error."""

    mean: float  # ratio of sums
    error: float  # its standard error
    freedom: float  # degrees of, of the error
    requests: int

    @staticmethod
    def of(fractions: Sequence[tuple[float, float]], documents: Sequence[Hashable]) -> "AlarmLevel | None":
        """Compute the level of one fraction per request; ``None`` with less than one degree of freedom, as of one document."""
        below: dict[Hashable, float] = defaultdict(float)
        for (_, one), document in zip(fractions, documents, strict=True):
            below[document] += one
        squares = [one**2 for one in below.values()]
        freedom = sum(squares) ** 2 / sum(one**2 for one in squares) - 1 if squares else 0.0
        if freedom < 1 - 1e-9:
            return None
        total = sum(below.values())
        mean = sum(above for above, _ in fractions) / total
        residuals: dict[Hashable, float] = defaultdict(float)
        for (above, one), document in zip(fractions, documents, strict=True):
            residuals[document] += above - mean * one
        changes = (residual / (total - below[document]) for document, residual in residuals.items())
        error = math.sqrt(sum(change**2 for change in changes) * (len(below) - 1) / len(below))
        return AlarmLevel(mean, error, freedom, len(fractions))


@dataclass(frozen=True)
class Reference:
    """Levels of requests on recorded texts, at one sampling setting."""

    tokens: float  # new ones of a request, on average
    levels: Mapping[str, AlarmLevel] = field(default_factory=dict)  # by statistic

    @staticmethod
    def of(counted: Sequence[RequestCounts], documents: Sequence[str]) -> "Reference":
        """Compute the levels of one count per request, each with its document."""
        found: dict[str, tuple[list[tuple[float, float]], list[str]]] = {}
        for counts, document in zip(counted, documents, strict=True):
            for name, fraction in fractions_of(vars(counts)).items():
                fractions, of = found.setdefault(name, ([], []))
                fractions.append(fraction)
                of.append(document)
        levels = {name: AlarmLevel.of(*some) for name, some in found.items()}
        known = {name: level for name, level in levels.items() if level is not None}
        return Reference(fmean(counts.emitted for counts in counted), known)


def read_reference(card: Mapping[str, Any]) -> tuple[dict[str, Reference], str]:
    """Read a bundle card's references by sampling setting, and why there are no others."""
    made = card.get(KEY, {"settings": {}, "missing": OLD})
    references = {name: parse_config(Reference, one, f"card.json: {KEY}") for name, one in made["settings"].items()}
    return references, made["missing"] or ELSEWHERE
