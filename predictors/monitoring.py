"""What is counted of a served request, and what many of them say: the runtime counts, a bundle's card knows recorded requests.

    accepted = accepted tokens / rounds
    residual = Σ (outcome - probability) / forecasts that came to a test            calibration error
    distance = Σ squared distance of the features from the training rows / questions
    feature i = Σ their i-th standardised coordinate / questions                    a head's are principal components

A forecast of `predictors.rounds` comes to a test where the round submitted a token at its place and accepted all before it; the
outcome is whether it was accepted too. Rounds count that the request's budget left whole, so that short requests compare with
long ones. Requests of one document are alike, so the error of a mean over n requests is taken over D documents (n_d requests of
mean x̄_d):

    error² = Σ_d (n_d (x̄_d - x̄))² / n² · D / (D - 1)
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from statistics import fmean, stdev
from typing import Any

from predictors.rounds import Forecast

ACCEPTED, RESIDUAL, DISTANCE, FEATURE = "accepted", "residual", "distance", "feature"


@dataclass
class RequestCounts:
    """Counts of one request with a ``budget`` of new tokens, whose rounds may submit ``depth`` tokens in a row. ``emitted`` holds
    the prefill's token from the start; the others are of the ``rounds`` behind it that the budget left whole."""

    budget: int
    depth: int
    emitted: int = 1
    rounds: int = 0
    submitted: int = 0
    accepted: int = 0
    questions: int = 0
    distance: float = 0.0
    sketch: tuple[float, ...] = ()
    tested: int = 0
    probability: float = 0.0
    outcomes: int = 0

    def add(self, emitted: int, submitted: int, accepted: int, forecasts: Iterable[Forecast]) -> None:
        """Count a round: ``submitted`` levels, ``accepted`` tokens, a branch point's hit among them."""
        left, self.emitted = self.budget - self.emitted - 1, self.emitted + emitted
        if left < self.depth:
            return
        self.rounds += 1
        self.submitted += submitted
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

    def statistics(self) -> dict[str, float]:
        """By name, those of which the request says something."""
        return statistics_of(vars(self))


def statistics_of(counts: Mapping[str, Any]) -> dict[str, float]:
    """Statistics of a request's ``counts``, as `RequestCounts` names them."""
    fractions = {
        ACCEPTED: (counts["accepted"], counts["rounds"]),
        RESIDUAL: (counts["outcomes"] - counts["probability"], counts["tested"]),
        DISTANCE: (counts["distance"], counts["questions"]),
    }
    fractions |= {f"{FEATURE} {i}": (total, counts["questions"]) for i, total in enumerate(counts["sketch"])}
    known = {name: above / below for name, (above, below) in fractions.items() if below}
    return {name: value for name, value in known.items() if math.isfinite(value)}


@dataclass(frozen=True)
class Level:
    """A statistic over ``requests`` of some ``documents``: its mean, the standard ``deviation`` between requests, and the mean's
    standard ``error``."""

    mean: float
    deviation: float
    error: float
    requests: int
    documents: int

    @staticmethod
    def of(values: Sequence[float], documents: Sequence[str]) -> "Level | None":
        """Of one value per request; ``None`` for less than two documents."""
        mean, sums = fmean(values) if values else 0.0, defaultdict[str, float](float)
        for value, document in zip(values, documents, strict=True):
            sums[document] += value - mean
        count = len(sums)
        if count < 2:
            return None
        error = math.sqrt(sum(one**2 for one in sums.values()) * count / (count - 1)) / len(values)
        return Level(mean, stdev(values), error, len(values), count)


@dataclass(frozen=True)
class Reference:
    """What requests at one sampling setting looked like on recorded texts: mean new ``tokens`` of a request, and ``levels`` by
    statistic."""

    tokens: float
    levels: dict[str, Level] = field(default_factory=dict)

    @staticmethod
    def of(counted: Sequence[RequestCounts], documents: Sequence[str]) -> "Reference":
        """Of one count per request, each with its document."""
        found: dict[str, tuple[list[float], list[str]]] = {}
        for counts, document in zip(counted, documents, strict=True):
            for name, value in counts.statistics().items():
                values, of = found.setdefault(name, ([], []))
                values.append(value)
                of.append(document)
        levels = {name: Level.of(*some) for name, some in found.items()}
        known = {name: level for name, level in levels.items() if level is not None}
        return Reference(fmean(counts.emitted for counts in counted), known)
