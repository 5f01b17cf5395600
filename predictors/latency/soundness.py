"""What speaks against a latency profile: cells that no quiet machine would have measured.

    monotone      t(n) <= 1.25 t(m) for n < m along every axis of a model's passes, or the quartiles of the two overlap
    spread        high - low <= 0.6 median, in every cell of every table
    plain         |target(1, l) + chain_verification(0) - plain(l)| <= 0.4 plain(l)       plain decoding, summed and run
    cost ratio    c(l) = target(1, l) / draft(1, l) >= 0.8
    waiting       the measuring threads waited for a processor at most 0.1 of the time

A finding names the cell that most speaks against, and those that it was compared with: measured again together, they show
whether a moment was disturbed or the machine is. What still stands then is the profile's ``noise``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from predictors.latency.prices import RoundPrices
from predictors.latency.profile import LatencyProfile, LatencyTable

# Kernels of some wider shapes really are faster: up to a fifth was seen (float32, 5 rows against 4).
CLEARLY = 1.25
# Passes on a quiet machine stay below 0.1. Calls that nothing interrupted on a busy one reach 0.5; other jobs bring 1 to 6.
MOST_SPREAD = 0.6
# One tick of a timer or one interrupt: what moves a cell of microseconds, and no price.
SHORT = 20e-6
# Every cell begins with cold caches, plain decoding with its own: summed cells of passes of 3 ms took 0.3 more than decoding.
MOST_ERROR = 0.4
# A draft as large as its target has c = 1, and 0.8 if it was measured in the slower moments; no pair that pays has less.
LEAST_COST_RATIO = 1 / CLEARLY
# Of the time, summed over threads. A process alone on its cores hardly waits; beside two jobs on two cores it is 0.5 and more.
MOST_WAITING = 0.1
NAMED = 3  # findings in a warning; a busy machine has dozens
# By name: other tables' cells need not cost more where their coordinates are larger.
PASSES = ("draft", "target", "draft_hugging_face", "target_hugging_face", "draft_prefill", "target_prefill")


class Place(NamedTuple):
    """A cell."""

    table: str
    at: tuple[tuple[str, int], ...]  # coordinates sorted by axis

    @staticmethod
    def of(table: str, at: Mapping[str, int]) -> "Place":
        """The cell of ``table`` at these coordinates."""
        return Place(table, tuple(sorted((name, int(value)) for name, value in at.items())))

    def __str__(self) -> str:
        return " ".join([self.table, *(f"{name}={value}" for name, value in self.at)])


@dataclass(frozen=True)
class Finding:
    """A reason that speaks against a cell, in words."""

    place: Place
    value: str
    expected: str
    beside: tuple[Place, ...] = ()  # that it was compared with

    def __str__(self) -> str:
        return f"{self.place}: {self.value}, expected {self.expected}"


def findings(profile: LatencyProfile) -> list[Finding]:
    """All that speaks against the profile's cells; of tables that it lacks, nothing."""
    found = [finding for name, table in profile.tables.items() for finding in _spreads(name, table)]
    found += [finding for name in PASSES if name in profile.tables for finding in _falling(name, profile.tables[name])]
    return [*found, *_plain(profile), *_cost_ratios(profile)]


def waiting_noise(share: float) -> list[str]:
    """A sentence if the measuring threads waited for a processor for more than `MOST_WAITING` of the timed seconds."""
    if share <= MOST_WAITING:
        return []
    return [f"other work held the processor: threads waited {share:.2f} of the time, expected {MOST_WAITING} at most"]


def noise_warning(profile: LatencyProfile) -> str | None:
    """Warn whoever uses a noisy profile; ``None`` for one without noise."""
    if not profile.noise:
        return None
    device = profile.provenance.get("device", {}).get("slug", "the device")
    more = [f"{len(profile.noise) - NAMED} more"] if len(profile.noise) > NAMED else []
    return (
        f"{device} was noisy when the latency profile of {profile.pair} was measured "
        f"({'; '.join([*profile.noise[:NAMED], *more])}): prices are uncertain. "
        f"Run dvc repro -sf latency@{profile.pair} while nothing else runs there."
    )


def _spreads(name: str, table: LatencyTable) -> Iterator[Finding]:
    for index, place in _places(name, table):
        width, median = table.high[index] - table.low[index], table.median[index]
        if width > max(MOST_SPREAD * median, SHORT):
            yield Finding(place, f"spread {width / median:.0%}", f"{MOST_SPREAD:.0%} at most")


def _falling(name: str, table: LatencyTable) -> Iterator[Finding]:
    """Of cells that contradict each other, those that most others contradict; of two alike the dearer: other work adds time."""
    places = dict(_places(name, table))
    pairs = [(dear, cheap) for dear, cheap in combinations(places, 2) if _contradict(table, dear, cheap)]
    while pairs:
        counts = Counter([dear for dear, _ in pairs] + [cheap for _, cheap in pairs])
        worst = counts.most_common(1)[0][0]
        against = max((pair for pair in pairs if worst in pair), key=lambda pair: _excess(table, *pair))
        other = against[0] if worst == against[1] else against[1]
        bound = "at most" if worst == against[0] else "at least"
        yield Finding(
            places[worst],
            _milliseconds(table.median[worst]),
            f"{bound} about {_milliseconds(table.median[other])}, as {places[other]}",
            (places[other],),
        )
        pairs = [pair for pair in pairs if worst not in pair]


def _contradict(table: LatencyTable, small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether ``small`` is clearly dearer than ``large``, which differs from it in one coordinate (indices ascend)."""
    if sum(one != other for one, other in zip(small, large, strict=True)) != 1:
        return False
    apart = table.low[small] > table.high[large] and table.median[small] - table.median[large] > SHORT
    return bool(apart and _excess(table, small, large) > CLEARLY)


def _excess(table: LatencyTable, small: tuple[int, ...], large: tuple[int, ...]) -> float:
    return float(table.median[small] / table.median[large])


def _plain(profile: LatencyProfile) -> Iterator[Finding]:
    """Plain decoding as it ran against the cells it is summed from."""
    if not {"plain", "target", "chain_verification"} <= set(profile.tables):
        return
    prices = RoundPrices(profile, sampled=False, quiet=False)
    for context in profile.tables["plain"].axes["context"]:
        ran = profile.latency("plain", context=context).seconds
        summed = prices.chain(0, context)
        if abs(summed - ran) > max(MOST_ERROR * ran, SHORT):
            target = Place.of("target", {"tokens": 1, "context": context})
            verification = Place.of("chain_verification", {"drafted": 0, "sampled": 0})
            yield Finding(
                Place.of("plain", {"context": context}),
                f"{_milliseconds(ran)} a token",
                f"about {_milliseconds(summed)}, the sum of its cells",
                (target, verification),
            )


def _cost_ratios(profile: LatencyProfile) -> Iterator[Finding]:
    if not {"draft", "target"} <= set(profile.tables):
        return
    for context in profile.tables["target"].axes["context"]:
        ratio = profile.cost_ratio(context)
        if not ratio >= LEAST_COST_RATIO:  # no number is none either
            target = Place.of("target", {"tokens": 1, "context": context})
            step = Place.of("draft", {"rows": 1, "context": context})
            expected = f"{LEAST_COST_RATIO:g} at least"
            yield Finding(target, f"as long as {ratio:.2f} draft steps", expected, (step,))


def _places(name: str, table: LatencyTable) -> Iterator[tuple[tuple[int, ...], Place]]:
    """Every cell's index, ascending, and its place."""
    grids = [np.asarray(grid).tolist() for grid in table.axes.values()]
    for index in product(*(range(len(grid)) for grid in grids)):
        at = {axis: grid[place] for axis, grid, place in zip(table.axes, grids, index, strict=True)}
        yield index, Place.of(name, at)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
